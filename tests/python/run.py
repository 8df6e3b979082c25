"""Runs pytest on the package as its wheel has it.

usage: run.py FOLDER_OF_THE_WHEEL
Ends with 77 where this interpreter has no PyTorch or no pytest.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

wheels = list(pathlib.Path(sys.argv[1]).glob("xstage-*.whl"))
if not wheels:
    print("needs the wheel, which could not be made")
    sys.exit(77)
for module in ("torch", "pytest"):
    if subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode:
        print(f"needs PyTorch and pytest: {sys.executable} has no {module}")
        sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    zipfile.ZipFile(wheels[0]).extractall(folder)
    environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider",
                             str(pathlib.Path(__file__).parent)], env=environment).returncode)
