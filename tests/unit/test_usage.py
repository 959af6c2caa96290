"""The sampler of CPU, memory and GPUs."""

import math
import os
import shutil
import subprocess
import sys
import time

import pytest

from clusterkernel.runtime import usage
from clusterkernel.runtime.usage import Gpus, Sampler

SPIN = "import sys, time\nend = time.process_time() + float(sys.argv[1])\nwhile time.process_time() < end: pass\n"
NO_GPUS = Gpus(library="/nowhere/libnvidia-ml.so.1")


def spin(seconds, after=""):
    return subprocess.Popen([sys.executable, "-c", SPIN + after, str(seconds)], stdout=subprocess.PIPE)


def seconds_used(sampler, begin):
    """CPU seconds between the last sample and now, on a clock of our own."""
    record = sampler.sample(begin + 100.0)
    return record["cpu_percent"]  # percent of 100 s: seconds


def test_a_record():
    record = Sampler(os.getpid(), NO_GPUS).sample(time.time())
    assert record.keys() == {"t", "host", "cpu_percent", "rss_mib", "gpus"}
    assert record["host"] == os.uname().nodename
    assert record["gpus"] == []
    assert 1 < record["rss_mib"] < 1e6
    assert record["cpu_percent"] >= 0


def test_cpu_of_a_child_that_lives_and_of_one_that_ended():
    sampler = Sampler(os.getpid(), NO_GPUS)
    sampler.sample(1000.0)
    ended = spin(0.5)
    ended.communicate()
    live = spin(0.5, "print('spun', flush=True)\ntime.sleep(60)\n")
    try:
        assert live.stdout.readline() == b"spun\n"
        used = seconds_used(sampler, 1000.0)
        assert 0.9 < used < 5
        # The live one ends: what it used was counted and is not counted again.
    finally:
        live.kill()
        live.communicate()
    assert seconds_used(sampler, 2000.0) < 0.5


def test_memory_of_children_counts():
    sampler = Sampler(os.getpid(), NO_GPUS)
    before = sampler.sample(1.0)["rss_mib"]
    code = "data = bytearray(b'x') * (200 << 20)\nprint(len(data), flush=True)\nimport time; time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        assert sampler.sample(2.0)["rss_mib"] - before > 200
    finally:
        child.kill()
        child.communicate()


def test_the_first_sample_tells_of_the_life_of_the_root():
    root = spin(0.4, "print('spun', flush=True)\ntime.sleep(60)\n")
    try:
        root.stdout.readline()
        record = Sampler(root.pid, NO_GPUS).sample(time.time())
        assert 1 < record["cpu_percent"] <= 150
    finally:
        root.kill()
        root.communicate()


def test_no_time_between_two_samples():
    sampler = Sampler(os.getpid(), NO_GPUS)
    sampler.sample(10.0)
    assert sampler.sample(10.0)["cpu_percent"] is None
    assert sampler.sample(9.0)["cpu_percent"] is None
    assert sampler.sample(19.0)["cpu_percent"] is not None


def test_a_root_that_is_gone():
    child = spin(0)
    child.communicate()
    record = Sampler(child.pid, NO_GPUS).sample(time.time())
    assert (record["cpu_percent"], record["rss_mib"], record["gpus"]) == (None, None, [])


def test_a_name_with_parentheses(tmp_path):
    copy = tmp_path / "a) (b c"
    shutil.copy(shutil.which("sleep"), copy)
    child = subprocess.Popen([copy, "60"])
    try:
        sampler = Sampler(child.pid, NO_GPUS)
        sampler.sample(1.0)
        assert sampler.sample(2.0)["cpu_percent"] is not None
    finally:
        child.kill()
        child.wait()


def test_without_a_driver_nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(usage, "_DRIVER", ("/nowhere/nvidiactl",))
    gpus = Gpus()
    assert gpus.sample() == gpus.sample() == []
    assert gpus._nvml is None


# -- NVML, by a small library that answers as it does -------------------------------

NVML = r"""
#include <string.h>
#include <stdio.h>
#include <stdlib.h>
/* Signatures and result codes as in nvml.h: SUCCESS 0, INVALID_ARGUMENT 2, NOT_SUPPORTED 3, NO_PERMISSION 4,
   NOT_FOUND 6, GPU_IS_LOST 15. Device 2 of 4 belongs to another job where NVML_HIDDEN is set; 3 is a slice that
   tells memory only. */
struct device { unsigned index; char uuid[64]; };
static struct device devices[4] = {
    {0, "GPU-aaaa0000-1111"}, {1, "GPU-aabb0000-2222"}, {2, "GPU-cccc0000-3333"}, {3, "MIG-dddd0000-4444"}};
static int initialised = 0;
static unsigned calls = 0;
unsigned fake_calls(void) { return calls; }
int nvmlInit_v2(void) { calls++; initialised = 1; return getenv("NVML_BROKEN") ? 9 : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { if (!initialised) return 1; *count = 4; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device) {
    if (index >= 4) return 2;
    if (index == 2 && getenv("NVML_HIDDEN")) return 4;
    *device = &devices[index];
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device) {
    for (int i = 0; i < 4; i++) if (!strcmp(uuid, devices[i].uuid)) { *device = &devices[i]; return 0; }
    return 6;
}
int nvmlDeviceGetIndex(struct device *device, unsigned *index) { *index = device->index; return 0; }
int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "%s", device->uuid);
    return 0;
}
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned long long total, free, used; } memory;
int nvmlDeviceGetUtilizationRates(struct device *device, utilization *rates) {
    if (device->index == 3) return 3;
    rates->gpu = 10 * (device->index + 1); rates->memory = 99;
    return 0;
}
int nvmlDeviceGetMemoryInfo(struct device *device, memory *info) {
    if (getenv("NVML_LOST")) return 15;
    info->total = 80ULL << 30;
    info->used = (device->index + 1ULL) << 30;
    info->free = info->total - info->used;
    return 0;
}
int nvmlDeviceGetPowerUsage(struct device *device, unsigned *milliwatts) {
    if (device->index == 3) return 3;
    *milliwatts = 250500 + device->index;
    return 0;
}
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(NVML)
    library = folder / "libnvidia-ml.so.1"
    # A test environment that builds packages has a C compiler; without one the bindings go untested, which must show.
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "nvml.c"], check=True)
    return str(library)


def indices(nvml, visible):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return [gpu["index"] for gpu in Gpus(environ, nvml).sample()]


@pytest.mark.compiler
def test_what_a_gpu_tells(nvml):
    gpus = Gpus({}, nvml).sample()
    assert gpus[1] == {
        "index": 1, "util_percent": 20.0, "memory_mib": 2048.0, "memory_total_mib": 81920.0, "power_w": 250.5,
    }  # fmt: skip
    assert gpus[3] == {
        "index": 3, "util_percent": None, "memory_mib": 4096.0, "memory_total_mib": 81920.0, "power_w": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2, 3]), ("", []), ("-1", []), ("0", [0]), ("2,0", [2, 0]), (" 1 , 3 ", [1, 3]),
        ("0,9,1", [0]), ("0,-1,1", [0]), ("NoDevFiles", []),
        ("GPU-cccc0000-3333", [2]), ("GPU-cccc", [2]), ("GPU-aabb,0", [1, 0]), ("GPU-none,0", []),
        ("MIG-dddd0000-4444", [3]),
    ],
)  # fmt: skip
@pytest.mark.compiler
def test_visible_devices(nvml, visible, expected):
    assert indices(nvml, visible) == expected


@pytest.mark.compiler
def test_a_gpu_that_may_not_be_opened_is_left_out(nvml, monkeypatch):
    monkeypatch.setenv("NVML_HIDDEN", "1")
    assert indices(nvml, None) == [0, 1, 3]
    assert indices(nvml, "1,2,0") == [1]


@pytest.mark.compiler
def test_a_gpu_that_is_lost_tells_nothing(nvml, monkeypatch):
    gpus = Gpus({"CUDA_VISIBLE_DEVICES": "0"}, nvml)
    assert gpus.sample()[0]["memory_mib"] == 1024.0
    monkeypatch.setenv("NVML_LOST", "1")
    assert gpus.sample()[0]["memory_mib"] is None


@pytest.mark.compiler
def test_a_driver_that_does_not_answer(nvml, monkeypatch):
    monkeypatch.setenv("NVML_BROKEN", "1")
    assert indices(nvml, None) == []


@pytest.mark.compiler
def test_a_library_that_lacks_a_function(tmp_path):
    (tmp_path / "old.c").write_text("int nvmlInit_v2(void) { return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "old.so", tmp_path / "old.c"], check=True)
    assert indices(str(tmp_path / "old.so"), None) == []


@pytest.mark.compiler
def test_it_is_opened_once(nvml):
    import ctypes

    calls = ctypes.CDLL(nvml).fake_calls
    before = calls()
    gpus = Gpus({}, nvml)
    for _ in range(5):
        assert len(gpus.sample()) == 4
    assert calls() == before + 1


@pytest.mark.compiler
def test_the_sampler_has_gpus_in_its_record(nvml):
    record = Sampler(os.getpid(), Gpus({"CUDA_VISIBLE_DEVICES": "1"}, nvml)).sample(time.time())
    assert [gpu["index"] for gpu in record["gpus"]] == [1]
    assert all(math.isfinite(value) for value in record["gpus"][0].values())
