"""safetensors_test.py <safetensors> <model>: files of this library open in the Python package safetensors with
equal values, and its files here. Exit status 77 if the packages are missing."""

import importlib.util
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

SKIPPED = 77

try:
    import numpy
    import safetensors
    import safetensors.numpy
except ImportError as missing:
    print(f"SKIPPED: {missing}; ./dev interop installs what this test needs")
    sys.exit(SKIPPED)

program, model_program = sys.argv[1:]


def check(condition, what):
    if not condition:
        sys.exit(f"not so: {what}")


def raw(path):
    """Name: (dtype, shape, bytes), by the reference's own parser: also of types that numpy lacks."""
    arrays = safetensors.deserialize(pathlib.Path(path).read_bytes())
    return {name: (a["dtype"], tuple(a["shape"]), bytes(a["data"])) for name, a in arrays}


def serialize(arrays):
    """The bytes of a file by the reference's own writer, whose call changed with version 0.8."""
    if hasattr(safetensors, "TensorSpec"):
        return safetensors.serialize({
            name: safetensors.TensorSpec(dtype=dtype, shape=shape, data_ptr=data.ctypes.data,
                                         data_len=data.nbytes)
            for name, (dtype, shape, data) in arrays.items()})
    return safetensors.serialize({
        name: {"dtype": dtype, "shape": shape, "data": data.tobytes()}
        for name, (dtype, shape, data) in arrays.items()})


def known(count):
    return numpy.arange(count, dtype=numpy.float32) / 4 - 2


def bfloat16(values):
    """These values are exact in bfloat16: the upper halves of the floats."""
    return (values.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()


def ours_opens_there(folder):
    path = folder / "ours.safetensors"
    subprocess.run([program, "write", path], check=True)
    expected = {
        "block.0.up": ("F32", (4, 6), known(24).tobytes()),
        "block.0.up/muon.momentum[3:9]": ("F32", (6,), known(6).tobytes()),
        "block.0.half": ("BF16", (3, 5), bfloat16(known(15))),
        "block.0.conv": ("F16", (2, 3, 1, 2), known(12).astype(numpy.float16).tobytes()),
        "empty": ("F32", (0, 7), b""),
        "scalar": ("F32", (), known(1).tobytes()),
        'n\u00e4me "quoted"\\': ("BF16", (1,), bfloat16(known(1))),
    }
    check(raw(path) == expected, "our arrays have the values that were written")
    with safetensors.safe_open(path, framework="np") as file:
        check(file.metadata() == {"format": "pt", "step": "12"}, "our metadata is read")
        check(numpy.array_equal(file.get_tensor("block.0.up"), known(24).reshape(4, 6)),
              "an array of ours is one of numpy")
        check(numpy.array_equal(file.get_slice("block.0.up")[1:3], known(24).reshape(4, 6)[1:3]),
              "rows of ours are read by themselves")
    length = struct.unpack("<Q", path.read_bytes()[:8])[0]
    check(length % 8 == 0, "our data begins at a multiple of 8 bytes")

    if importlib.util.find_spec("torch"):
        import torch
        from safetensors.torch import load_file

        half = load_file(path)["block.0.half"]
        check(half.dtype == torch.bfloat16, "torch sees bfloat16")
        check(torch.equal(half.float().flatten(), torch.from_numpy(known(15))), "and its values")
        return "numpy and torch"
    return "numpy"


def theirs_opens_here(folder):
    random = numpy.random.default_rng(1)
    path, copy = folder / "theirs.safetensors", folder / "copy.safetensors"
    arrays = {
        "a": random.standard_normal((5, 7)).astype(numpy.float32),
        "b": random.standard_normal(9).astype(numpy.float16),
        "c": random.standard_normal((2, 2)),
        "d": random.integers(-9, 9, (3, 1, 2)),
        "e": random.integers(0, 255, 11).astype(numpy.uint8),
        "f": numpy.zeros((4, 0), numpy.float32),
        "g": numpy.array(2.5, dtype=numpy.float32),
        "h": numpy.array([True, False, True]),
    }
    safetensors.numpy.save_file(arrays, path, metadata={"made": "by numpy"})
    subprocess.run([program, "copy", path, copy], check=True)
    check(raw(copy) == raw(path), "arrays of numpy are read here and written again as they were")
    with safetensors.safe_open(copy, framework="np") as file:
        check(file.metadata() == {"made": "by numpy"}, "and so is the metadata")
    check(all(numpy.array_equal(safetensors.numpy.load_file(copy)[name], array)
              for name, array in arrays.items()), "numpy agrees")

    halves = random.standard_normal(12).astype(numpy.float32)
    path.write_bytes(serialize({
        "w": ("bfloat16", (3, 4), numpy.frombuffer(bfloat16(halves), numpy.uint16)),
        "v": ("float32", (12,), halves),
    }))
    copy.unlink()
    subprocess.run([program, "copy", path, copy], check=True)
    check(raw(copy)["w"] == ("BF16", (3, 4), bfloat16(halves)), "bfloat16 of theirs is read here")
    check(raw(copy) == raw(path), "beside float")


def models_open_there(folder):
    """An exported model, one in several files with an index, and the parameters of a checkpoint."""
    subprocess.run([model_program, folder], check=True)
    expected = {
        "block.up": ("BF16", (6, 4), bfloat16(known(24))),
        "block.norm": ("BF16", (5,), bfloat16(known(5))),
        "block.fixed": ("BF16", (3,), bfloat16(known(3))),
        "head.table": ("BF16", (3, 2, 2), bfloat16(known(12))),
    }
    check(raw(folder / "model.safetensors") == expected, "an exported model has its values")

    index = json.loads((folder / "several/model.safetensors.index.json").read_text())
    check(index["metadata"]["total_size"] == 2 * 44, "the index has the bytes of all arrays")
    found = {}
    for name in set(index["weight_map"].values()):
        arrays = raw(folder / "several" / name)
        check(all(index["weight_map"][a] == name for a in arrays), "the index says where each is")
        found |= arrays
    check(len(set(index["weight_map"].values())) > 1, "there are several files")
    check(found == expected, "a model in several files has its values")

    found = {}
    for path in (folder / "run/step-000000000000").glob("parameters-*.safetensors"):
        found |= raw(path)
    check(found == expected, "the parameters of a checkpoint have the names of their tensors")


def both_refuse(folder):
    """What their parser refuses, ours refuses."""
    path = folder / "damaged.safetensors"
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    headers = [
        {"a": entry, "b": dict(entry, data_offsets=[4, 12])},
        {"a": dict(entry, data_offsets=[4, 12])},
        {"a": dict(entry, shape=[3])},
        {"a": dict(entry, dtype="F31")},
        {"a": dict(entry, shape=[2**62, 4], data_offsets=[0, 0])},
        {"a": dict(entry, data_offsets=[8, 0])},
        {"a": dict(entry, shape=[-2])},
    ]
    for header in headers:
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
        try:
            raw(path)
            check(False, f"their parser refuses {header}")
        except safetensors.SafetensorError:
            pass
        ran = subprocess.run([program, "copy", path, folder / "none"], capture_output=True, text=True)
        check(ran.returncode == 1 and "damaged.safetensors: " in ran.stderr,
              f"ours refuses {header}, not: {ran}")


with tempfile.TemporaryDirectory() as name:
    seen = ours_opens_there(pathlib.Path(name))
    theirs_opens_here(pathlib.Path(name))
    models_open_there(pathlib.Path(name))
    both_refuse(pathlib.Path(name))
print(f"equal values in both directions, safetensors {safetensors.__version__}, {seen}")
