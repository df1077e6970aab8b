from typing import Any

__version__: str

# Says that the list above is not complete; without it, a test requires that it is.
def __getattr__(name: str) -> Any: ...
