"""What a job uses: CPU and memory of all its processes, and its GPUs."""

import os

from . import processes

__all__ = ["Gpus", "Sampler"]

_MIB = 1024.0 * 1024.0
# What is there where a driver of NVIDIA's is: its own device, WSL's, the kernel module's folder.
_DRIVER = ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia")


class Sampler(object):
    """Samples what a tree of processes uses.

    Parameters
    ----------
    root_pid : int
        The process at its root, counted too.
    gpus : Gpus, optional
        By default those that this process may see.

    Notes
    -----
    CPU time is that of the live processes and of the ended ones that a live one
    has waited for, so nothing is lost when a process ends, as long as orphans
    come to the root (a subreaper). ``rss_mib`` is the sum of resident sets: pages
    that processes share, such as a library or a forked data loader's, count once
    for each (the proportional share would make the kernel walk every page table).
    """

    def __init__(self, root_pid, gpus=None):
        self._root = root_pid
        self._gpus = Gpus() if gpus is None else gpus
        self._host = os.uname().nodename
        self._tick = float(os.sysconf("SC_CLK_TCK"))
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._last = None  # (now, CPU seconds)

    def sample(self, now):
        """Take a sample; it does not raise.

        Parameters
        ----------
        now : float
            Seconds since the epoch.

        Returns
        -------
        dict
            ``t``, ``host``, ``cpu_percent`` (100 is one core, the mean since the last sample, at the
            first since the root started; None where it cannot be told), ``rss_mib`` (None as well)
            and ``gpus``, a list with a dict for each, empty where there is none.
        """
        seconds, resident, age = self._processes()
        percent = None
        if seconds is not None:
            # The first sample tells the mean of the root's life.
            before, used = self._last if self._last is not None else (now - age, 0.0)
            if now > before:
                percent = round(max(0.0, 100.0 * (seconds - used) / (now - before)), 1)
            self._last = (now, seconds)
        return {
            "t": now,
            "host": self._host,
            "cpu_percent": percent,
            "rss_mib": None if resident is None else round(resident / _MIB, 1),
            "gpus": self._gpus.sample(),
        }

    def _processes(self):
        """(CPU seconds, resident bytes, seconds since the root started), Nones where /proc does not tell."""
        seconds = resident = age = None
        for pid in [self._root] + processes.descendants(self._root):
            try:
                with open("/proc/%d/stat" % pid, "rb") as file:
                    # The command's name, in parentheses, may hold spaces and parentheses.
                    fields = file.read().rpartition(b")")[2].split()
                used = sum(int(field) for field in fields[11:15]) / self._tick  # utime, stime, cutime, cstime
                pages = int(fields[21])
                if pid == self._root:
                    with open("/proc/uptime", "rb") as file:
                        age = float(file.read().split()[0]) - int(fields[19]) / self._tick
            except (IOError, OSError, ValueError, IndexError):
                continue  # it has just ended
            seconds = (seconds or 0.0) + used
            resident = (resident or 0) + pages * self._page
        if age is None:
            return None, resident, None
        return seconds, resident, max(age, 0.0)


class Gpus(object):
    """The NVIDIA GPUs that CUDA would see, read through NVML.

    Parameters
    ----------
    environ : mapping, optional
        ``CUDA_VISIBLE_DEVICES`` in it chooses: numbers, or names (``GPU-...``,
        ``MIG-...``), which may be shortened; as CUDA does, the first that is
        unknown ends the list.
    library : str, optional
        NVML's library. By default the system's, where a driver is.

    Notes
    -----
    Numbers are taken in NVML's order, that of the PCI bus, which is CUDA's where
    the GPUs of a node are alike. What a GPU does not tell (a MIG slice has no
    utilisation) is None.
    """

    def __init__(self, environ=None, library=None):
        self._environ = os.environ if environ is None else environ
        self._library = library
        self._nvml = None
        self._handles = None  # (NVML's index, handle) of each
        self._failed = False

    def sample(self):
        """One dict a GPU: index, util_percent, memory_mib, memory_total_mib, power_w."""
        if self._failed:
            return []
        try:
            if self._handles is None:
                self._open()
            return [self._read(index, handle) for index, handle in self._handles]
        except (AttributeError, OSError, ValueError):
            # No library, an old one without these functions, or no GPU that answers.
            self._failed = True
            return []

    def _open(self):
        if self._library is None and not any(os.path.exists(path) for path in _DRIVER):
            raise OSError("no driver")
        import ctypes

        self._ctypes = ctypes
        self._nvml = ctypes.CDLL(self._library or "libnvidia-ml.so.1")
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        wanted = self._environ.get("CUDA_VISIBLE_DEVICES")
        self._handles = []
        if wanted is None:
            self._handles = [(index, self._by_index(index)) for index in range(count.value)]
            # One that this job may not open is not its own.
            self._handles = [(index, handle) for index, handle in self._handles if handle is not None]
            return
        for word in wanted.split(","):
            found = self._by_word(word.strip(), count.value)
            if found is None:
                break
            self._handles.append(found)

    def _by_word(self, word, count):
        if word.isdigit():
            handle = self._by_index(int(word)) if int(word) < count else None
            return None if handle is None else (int(word), handle)
        if not word.startswith(("GPU-", "MIG-")):
            return None
        ctypes = self._ctypes
        handle = ctypes.c_void_p()
        if self._status("nvmlDeviceGetHandleByUUID", word.encode("ascii", "replace"), ctypes.byref(handle)) == 0:
            return self._index(handle), handle
        for index in range(count):
            handle = self._by_index(index)
            if handle is None:
                continue
            name = ctypes.create_string_buffer(96)
            told = self._status("nvmlDeviceGetUUID", handle, name, ctypes.c_uint(96)) == 0
            if told and name.value.decode("ascii", "replace").startswith(word):
                return index, handle
        return None

    def _by_index(self, index):
        handle = self._ctypes.c_void_p()
        pointer = self._ctypes.byref(handle)
        status = self._status("nvmlDeviceGetHandleByIndex_v2", self._ctypes.c_uint(index), pointer)
        return handle if status == 0 else None

    def _index(self, handle):
        index = self._ctypes.c_uint()
        if self._status("nvmlDeviceGetIndex", handle, self._ctypes.byref(index)) == 0:
            return index.value
        return len(self._handles)

    def _read(self, index, handle):
        ctypes = self._ctypes
        rates = (ctypes.c_uint * 2)()  # nvmlUtilization_t: gpu, memory; percent
        memory = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used; bytes
        power = ctypes.c_uint()  # milliwatts
        used = total = None
        if self._status("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)) == 0:
            total, used = round(memory[0] / _MIB, 1), round(memory[2] / _MIB, 1)
        busy = self._status("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates)) == 0
        drawn = self._status("nvmlDeviceGetPowerUsage", handle, ctypes.byref(power)) == 0
        return {
            "index": index,
            "util_percent": float(rates[0]) if busy else None,
            "memory_mib": used,
            "memory_total_mib": total,
            "power_w": round(power.value / 1000.0, 1) if drawn else None,
        }

    def _status(self, name, *arguments):
        """NVML's answer to a call; every function returns an int, 0 for success."""
        return getattr(self._nvml, name)(*arguments)

    def _call(self, name, *arguments):
        status = self._status(name, *arguments)
        if status != 0:
            raise OSError("%s: %d" % (name, status))
