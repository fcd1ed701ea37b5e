"""Small root directories that look like real machines: what /proc and /sys/fs/cgroup hold there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MIB, GIB = 1 << 20, 1 << 30
NO_LIMIT = "9223372036854771712"
CGROUP = "sys/fs/cgroup"

Tree = Mapping[str, str]


def grow(root: Path, *trees: Tree) -> Path:
    """Write the files of the trees below `root`; of two for one path the later stays."""
    for tree in trees:
        for name, content in tree.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content + "\n", encoding="utf-8")
    return root


def host(*, cpus: int = 64, total: int = 256 * GIB, available: int = 200 * GIB) -> Tree:
    """The files that every Linux has, in a container too: /proc/meminfo is not namespaced."""
    return {
        "proc/version": "Linux version 6.8.0-45-generic (buildd@lcy02-amd64-075)",
        "proc/vmstat": "nr_free_pages 123\noom_kill 5\npgfault 9",
        "proc/meminfo": (
            f"MemTotal:       {total // 1024} kB\nMemFree:          1048576 kB\n"
            f"MemAvailable:   {available // 1024} kB\nSwapTotal:      8388608 kB\nSwapFree:       8388608 kB"
        ),
        "proc/self/status": f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-{cpus - 1}",
        "sys/devices/system/cpu/online": f"0-{cpus - 1}",
    }


def mounts(*lines: str) -> Tree:
    """mountinfo: the given cgroup mounts between others, as always."""
    others = "22 27 0:21 / /proc rw,relatime - proc proc rw", "23 27 0:22 / /sys rw shared:7 - sysfs sysfs rw"
    return {"proc/self/mountinfo": "\n".join((*others, *lines))}


def mount_v1(controllers: str, top: str = "/") -> str:
    where = f"{top} /{CGROUP}/{controllers}"
    return f"32 31 0:29 {where} ro,nosuid,nodev,noexec,relatime master:11 - cgroup cgroup rw,{controllers}"


def mount_v2(top: str = "/", point: str = f"/{CGROUP}") -> str:
    return f"41 31 0:38 {top} {point} rw,nosuid,nodev,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"


def own(*lines: str) -> Tree:
    return {"proc/self/cgroup": "\n".join(lines)}


def memory_v1(
    directory: str, limit: int | str, usage: int, inactive: int = 0, above: int | str = NO_LIMIT
) -> Tree:
    at = f"{CGROUP}/memory{directory}"
    return {
        f"{at}/memory.limit_in_bytes": str(limit),
        f"{at}/memory.usage_in_bytes": str(usage),
        f"{at}/memory.use_hierarchy": "1",
        # The plain figure is that of the group without its children, and small on purpose.
        f"{at}/memory.stat": (
            f"cache 4096\ninactive_file 4096\nhierarchical_memory_limit {above}\ntotal_inactive_file {inactive}"
        ),
        f"{at}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
    }


def memory_v2(at: str, limit: int | str, usage: int, inactive: int = 0, high: int | str = "max") -> Tree:
    return {
        f"{at}/memory.max": str(limit),
        f"{at}/memory.high": str(high),
        f"{at}/memory.current": str(usage),
        f"{at}/memory.stat": f"anon 4096\nfile 4096\ninactive_anon 7\ninactive_file {inactive}",
        f"{at}/memory.events": "low 0\nhigh 4\nmax 9\noom 3\noom_kill 3\noom_group_kill 0",
    }


def cpu_v1(directory: str, quota: int, period: int = 100_000, controllers: str = "cpu,cpuacct") -> Tree:
    at = f"{CGROUP}/{controllers}{directory}"
    return {f"{at}/cpu.cfs_quota_us": str(quota), f"{at}/cpu.cfs_period_us": str(period)}


def pids(at: str, limit: int | str, current: int) -> Tree:
    return {f"{at}/pids.max": str(limit), f"{at}/pids.current": str(current)}
