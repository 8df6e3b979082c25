"""The package without PyTorch, and its version."""
import ctypes
import pathlib
import subprocess
import sys

import pytest
import xstage

HERE = pathlib.Path(xstage.__file__).parent


def test_version_is_the_librarys():
    library = ctypes.CDLL(str(HERE / "libxstage.so"))
    library.xstage_version.restype = ctypes.c_char_p
    assert xstage.__version__ == library.xstage_version().decode()
    from importlib.metadata import PackageNotFoundError, version
    try:
        assert version("xstage") == xstage.__version__
    except PackageNotFoundError:
        pytest.skip("needs the wheel installed")


def test_names():
    assert set(xstage.__all__) <= set(dir(xstage))
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        xstage.atention


def test_without_pytorch():
    script = """
import sys
sys.modules["torch"] = None
import xstage
print(xstage.__version__)
try:
    xstage.attention
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
    assert said.splitlines()[0] == xstage.__version__
    assert "xstage.attention needs PyTorch" in said


def test_errors_are_of_their_kinds():
    from xstage._errors import raise_for
    for code, kind in {1: xstage.Error, 2: xstage.BadInput, 3: xstage.Unsupported,
                       4: xstage.Unsupported, 5: xstage.WaitTimeout}.items():
        with pytest.raises(kind, match="why") as failure:
            raise_for(code, "why")
        assert failure.value.code == code and isinstance(failure.value, xstage.Error)
