"""The package imports without torch and vllm, and says its version."""

import subprocess
import sys


def test_import_needs_neither_torch_nor_vllm():
    code = "import sys, seqshift; assert not {'torch', 'vllm'} & set(sys.modules); print(seqshift.__version__)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "0.1.0"
