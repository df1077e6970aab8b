"""One log: what Python says goes where the native side's lines go, and is filtered by SEQSHIFT_LOG with them."""

from __future__ import annotations

import logging

from seqshift import _native

log = logging.getLogger("seqshift")


class _ToNative(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _native.log_line(record.levelname, self.format(record))


def set_up() -> None:
    """Connects the logger; a second call changes nothing."""
    if not any(isinstance(handler, _ToNative) for handler in log.handlers):
        log.addHandler(_ToNative())
        log.setLevel(logging.DEBUG)
        # The root logger's handlers would print every line once more.
        log.propagate = False
