"""A copy of an artifact with a kernel that writes where nothing is, to see how a fault is told.

    python3 benches/faults.py ARTIFACT KERNEL-STEM OUT

NVRTC translates the kernel's text anew with one line more, at the beginning of its body.
"""
import ctypes
import glob
import hashlib
import json
import pathlib
import shutil
import sys

WRITES = "  if (threadIdx.x == 0) *(volatile int*)64 = 1;\n"
OPTIONS = ["--std=c++17", "-fmad=false", "--gpu-architecture=sm_90a", "-Icodegen-templates"]


def nvrtc():
    for folder in sys.path:
        for path in sorted(glob.glob(f"{folder}/nvidia/**/libnvrtc.so.1*", recursive=True)):
            for needed in glob.glob(str(pathlib.Path(path).parent / "libnvrtc-builtins.so*")):
                ctypes.CDLL(needed, ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(path)
    return ctypes.CDLL("libnvrtc.so.13")


def cubin(text):
    library, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
    code = library.nvrtcCompileProgram(program, len(OPTIONS), (ctypes.c_char_p * len(OPTIONS))(*[o.encode() for o in OPTIONS]))
    if code != 0:
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        sys.exit(log.value.decode())
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, data)
    return data.raw


def main():
    artifact, stem, out = sys.argv[1:]
    shutil.copytree(artifact, out, dirs_exist_ok=True)
    found = sorted(pathlib.Path(out, "kernels").glob(f"{stem}*.cu"))
    if not found:
        sys.exit(f"no kernel begins with {stem}")
    text = found[0].read_text()
    at = text.index("{\n", text.index('extern "C"')) + 2
    data = cubin(text[:at] + WRITES + text[at:])
    name = f"kernels/{found[0].stem}.cubin"
    pathlib.Path(out, name).write_bytes(data)
    manifest = json.loads(pathlib.Path(out, "manifest.json").read_bytes())
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    pathlib.Path(out, "manifest.json").write_text(json.dumps(manifest))
    print(f"{found[0].stem} faults")


main()
