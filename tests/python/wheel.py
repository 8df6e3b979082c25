"""Makes the wheel and looks into it: name, files, metadata, what its library needs and exports.

usage: wheel.py CMAKE BUILD_FOLDER VERSION SOURCE_FOLDER
Ends with 77 where pip or PyPI cannot be had.
"""
import base64
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

cmake, build, version, source = sys.argv[1], *map(pathlib.Path, sys.argv[2:3]), sys.argv[3], pathlib.Path(sys.argv[4])
failed = []


def expect(what, good, seen=""):
    print(f"{'ok   ' if good else 'WRONG'} {what} {seen}")
    if not good:
        failed.append(what)


if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
    print("needs pip")
    sys.exit(77)
made = subprocess.run([cmake, "--build", str(build), "--target", "xstage_wheel"], capture_output=True, text=True)
if made.returncode:
    text = made.stdout + made.stderr
    print(text[-3000:])
    if re.search("No matching distribution|Failed to establish|Temporary failure|ConnectionError", text):
        print("needs PyPI, for the wheel's backend")
        sys.exit(77)
    sys.exit(1)

wheels = list((build / "wheel").glob("*.whl"))
expect("one wheel for every Python", [w.name for w in wheels] == [f"xstage-{version}-py3-none-linux_x86_64.whl"],
       [w.name for w in wheels])
wheel = zipfile.ZipFile(wheels[0])
names = set(wheel.namelist())
info = f"xstage-{version}.dist-info"
modules = {f"xstage/{path.name}" for path in (source / "python/xstage").iterdir() if path.suffix in (".py", ".typed")}
wanted = modules | {"xstage/libxstage.so", "xstage/include/xstage.h", f"{info}/METADATA", f"{info}/RECORD",
                    f"{info}/WHEEL", f"{info}/licenses/LICENSE", f"{info}/top_level.txt"}
expect("its files", names == wanted, sorted(names ^ wanted))
for name in modules:
    expect(f"{name} as in the source", wheel.read(name) == (source / "python" / name).read_bytes())
metadata = wheel.read(f"{info}/METADATA").decode()
for line in ("Name: xstage", f"Version: {version}", "Requires-Python: >=3.10", "License-Expression: Apache-2.0"):
    expect(f"metadata: {line}", line in metadata.splitlines())
for row in wheel.read(f"{info}/RECORD").decode().split():
    name, digest, _ = row.rsplit(",", 2)
    if digest:
        mine = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
        if digest != f"sha256={mine}":
            expect(f"digest of {name}", False)

with tempfile.TemporaryDirectory() as folder:
    wheel.extractall(folder)
    library = f"{folder}/xstage/libxstage.so"
    needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout)
    expect("the library needs the C library alone",
           set(needed) <= {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0",
                           "ld-linux-x86-64.so.2"}, needed)
    exported = re.findall(r" T (\S+)", subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True).stdout)
    declared = set(re.findall(r"\b(xstage_\w+)\(", (source / "include/xstage/xstage.h").read_text()))
    expect("it exports what the header declares, nothing else", set(exported) == declared,
           sorted(set(exported) ^ declared))
    script = "import xstage, sys; sys.stdout.write(xstage.__version__)"
    said = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)
    expect("it loads without PyTorch, GPU or driver, and says its version", said.stdout == version,
           said.stdout + said.stderr[-300:])
    told = subprocess.run([str(build / "xstage"), "--version"], capture_output=True, text=True)
    expect("the command line's version", version in told.stdout or told.returncode, told.stdout.strip())

header = subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c",
                         str(source / "include/xstage/xstage.h")], capture_output=True, text=True)
expect("the header is C", header.returncode == 0, header.stderr[-300:])
sys.exit(1 if failed else 0)
