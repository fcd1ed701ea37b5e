"""read_machine on the layouts that people build in."""

from __future__ import annotations

from pathlib import Path

from machine_trees import (
    CGROUP,
    GIB,
    MIB,
    NO_LIMIT,
    cpu_v1,
    grow,
    host,
    memory_v1,
    memory_v2,
    mount_v1,
    mount_v2,
    mounts,
    own,
    pids,
)

from safe_ext_build.machine import Cpus, MemoryLimit, ancestors, oom_kills, read_machine

HOST = MemoryLimit("host", 256 * GIB, 200 * GIB)
V1_MOUNTS = ("cpu,cpuacct", "memory", "pids")


def v1(path: str, top: str = "/") -> tuple[dict[str, str], dict[str, str]]:
    """A pure v1 machine (with systemd's own hierarchy), this process in `path` of each controller."""
    lines = ("12:pids:", "9:cpu,cpuacct:", "4:memory:", "1:name=systemd:")
    mounted = (mount_v1(name, top) for name in V1_MOUNTS)
    return dict(own(*(line + path for line in lines))), dict(mounts(*mounted))


def test_bare_host_v2(tmp_path: Path) -> None:
    """The root cgroup of v2 has no limit files at all."""
    session = {f"{CGROUP}/cgroup.controllers": "cpu memory pids"}
    machine = read_machine(grow(tmp_path, host(), own("0::/"), mounts(mount_v2()), session))
    assert machine.cpus == Cpus(64, 64, None, "64 CPUs")
    assert machine.memory == (HOST,)
    assert machine.budget == HOST
    assert machine.pids_free is None
    assert not machine.wsl


def test_bare_host_v1(tmp_path: Path) -> None:
    limits = memory_v1("", NO_LIMIT, 50 * GIB), cpu_v1("", -1)
    machine = read_machine(grow(tmp_path, host(), *v1("/"), *limits))
    assert (machine.memory, machine.cpus.quota, machine.pids_free) == ((HOST,), None, None)


def test_docker_v1(tmp_path: Path) -> None:
    """Docker mounts the container's own cgroup as the top, while /proc/self/cgroup tells the host's path."""
    path = "/docker/3f1a"
    limits = memory_v1("", 8 * GIB, 3 * GIB, inactive=GIB), cpu_v1("", 1_600_000)
    root = grow(tmp_path, host(), *v1(path, top=path), *limits, pids(f"{CGROUP}/pids", 512, 12))
    machine = read_machine(root)
    assert machine.memory == (HOST, MemoryLimit("cgroup /docker/3f1a", 8 * GIB, 6 * GIB))
    assert machine.budget.name == "cgroup /docker/3f1a"
    assert machine.cpus == Cpus(16, 64, 16.0, "16 of 64 CPUs (cgroup quota)")
    assert machine.pids_free == 500
    assert oom_kills(root) == {"host": 5, "cgroup /docker/3f1a": 2}


def test_docker_v2_with_a_cgroup_namespace(tmp_path: Path) -> None:
    files = memory_v2(CGROUP, 4 * GIB, GIB), pids(CGROUP, 100, 1), {f"{CGROUP}/cpu.max": "250000 100000"}
    root = grow(tmp_path, host(), own("0::/"), mounts(mount_v2()), *files)
    machine = read_machine(root)
    assert machine.memory == (HOST, MemoryLimit("cgroup /", 4 * GIB, 3 * GIB))
    assert machine.cpus == Cpus(3, 64, 2.5, "3 of 64 CPUs (cgroup quota 2.5)")
    assert machine.pids_free == 99
    assert oom_kills(root) == {"host": 5, "cgroup /": 3}


def test_docker_v2_with_the_hosts_mount(tmp_path: Path) -> None:
    """`-v /sys/fs/cgroup:/sys/fs/cgroup` in a namespace: we are two levels down, who knows where."""
    files = (
        memory_v2(f"{CGROUP}/system.slice", 4 * GIB, GIB),
        memory_v2(f"{CGROUP}/system.slice/docker-1.scope", GIB, 0),
        memory_v2(f"{CGROUP}/system.slice/docker-2.scope", 2 * GIB, GIB),
        {
            f"{CGROUP}/system.slice/docker-1.scope/cgroup.procs": "41\n471",
            f"{CGROUP}/system.slice/docker-2.scope/cgroup.procs": "1\n47",
            "proc/self/stat": "47 (python) R 1 47 47",
        },
    )
    root = grow(tmp_path, host(), own("0::/"), mounts(mount_v2(top="/../..")), *files)
    slice_, scope = "cgroup /../../system.slice", "cgroup /../../system.slice/docker-2.scope"
    assert read_machine(root).memory == (
        HOST,
        MemoryLimit(scope, 2 * GIB, GIB),
        MemoryLimit(slice_, 4 * GIB, 3 * GIB),
    )


def test_above_the_namespace_and_not_found(tmp_path: Path) -> None:
    """What is certain is that the mount's top is above us."""
    files = memory_v2(CGROUP, 4 * GIB, GIB), memory_v2(f"{CGROUP}/a/b", GIB, 0)
    root = grow(tmp_path, host(), own("0::/"), mounts(mount_v2(top="/../..")), *files)
    assert read_machine(root).memory == (HOST, MemoryLimit("cgroup /../..", 4 * GIB, 3 * GIB))


def test_moved_out_of_the_namespace(tmp_path: Path) -> None:
    """`/../sibling` is not below a mount that begins at the namespace, but is below one that begins above."""
    hidden = grow(
        tmp_path / "a",
        host(),
        own("0::/../sibling"),
        mounts(mount_v2()),
        memory_v2(CGROUP, GIB, 0),
        memory_v2("sys/fs/sibling", GIB, 0),
    )
    assert read_machine(hidden).memory == (HOST,)
    at = f"{CGROUP}/sibling"
    seen = grow(tmp_path / "b", host(), own("0::/../sibling"), mounts(mount_v2(top="/..")), memory_v2(at, GIB, 0))
    assert read_machine(seen).memory == (HOST, MemoryLimit("cgroup /../sibling", GIB, GIB))


def test_kubernetes_v1_pod_tighter_than_container(tmp_path: Path) -> None:
    """Seen from a privileged container that is also given the host's /sys/fs/cgroup."""
    pod = "/kubepods/burstable/pod8e"
    files = (
        memory_v1("", NO_LIMIT, 90 * GIB),
        memory_v1("/kubepods", 240 * GIB, 80 * GIB),
        memory_v1("/kubepods/burstable", NO_LIMIT, 60 * GIB),
        memory_v1(pod, 16 * GIB, 12 * GIB, inactive=GIB),
        memory_v1(f"{pod}/c1", 32 * GIB, 2 * GIB, above=16 * GIB),
        cpu_v1(pod, 800_000),
        cpu_v1(f"{pod}/c1", -1),
        cpu_v1("/kubepods", -1),
        pids(f"{CGROUP}/pids{pod}", 1000, 990),
        pids(f"{CGROUP}/pids{pod}/c1", "max", 20),
    )
    machine = read_machine(grow(tmp_path, host(), *v1(f"{pod}/c1"), *files))
    assert [(limit.name, limit.available // GIB) for limit in machine.memory] == [
        ("host", 200),
        (f"cgroup {pod}/c1", 30),
        (f"cgroup {pod}", 5),
        ("cgroup /kubepods", 160),
    ]
    assert machine.budget == MemoryLimit(f"cgroup {pod}", 16 * GIB, 5 * GIB)
    assert machine.cpus == Cpus(8, 64, 8.0, "8 of 64 CPUs (cgroup quota)")
    assert machine.pids_free == 10


def test_kubernetes_v1_pod_hidden(tmp_path: Path) -> None:
    """An ordinary container cannot see its pod; the limit shows in its own memory.stat all the same."""
    path = "/kubepods/pod8e/c1"
    files = memory_v1("", NO_LIMIT, 2 * GIB, inactive=GIB, above=16 * GIB)
    machine = read_machine(grow(tmp_path, host(), *v1(path, top=path), files))
    assert machine.budget == MemoryLimit(f"cgroup {path}", 16 * GIB, 15 * GIB)


def test_kubernetes_v2_pod_tighter_than_container(tmp_path: Path) -> None:
    pod = "/kubepods.slice/kubepods-pod8e.slice"
    here = f"{pod}/cri-containerd-c1.scope"
    files = (
        memory_v2(f"{CGROUP}/kubepods.slice", 240 * GIB, 80 * GIB),
        memory_v2(CGROUP + pod, 16 * GIB, 12 * GIB),
        memory_v2(CGROUP + here, 32 * GIB, 2 * GIB),
        pids(f"{CGROUP}/kubepods.slice", 1000, 1200),
        {f"{CGROUP}{pod}/cpu.max": "800000 100000", f"{CGROUP}{here}/cpu.max": "max 100000"},
    )
    machine = read_machine(grow(tmp_path, host(), own(f"0::{here}"), mounts(mount_v2()), *files))
    assert machine.budget == MemoryLimit(f"cgroup {pod}", 16 * GIB, 4 * GIB)
    assert machine.cpus.count == 8
    assert machine.pids_free == 0


def test_slurm_v1(tmp_path: Path) -> None:
    """The job has the limit, the step below it has none; the CPUs come as a cpuset, hence as affinity."""
    job = "/slurm/uid_1000/job_7"
    files = (
        memory_v1(job, 24 * GIB, 4 * GIB),
        memory_v1(f"{job}/step_0", NO_LIMIT, 4 * GIB),
        {"proc/self/status": "Name:\tpython\nCpus_allowed_list:\t8-11,40-43"},
    )
    machine = read_machine(grow(tmp_path, host(), *v1(f"{job}/step_0"), *files))
    assert machine.budget == MemoryLimit(f"cgroup {job}", 24 * GIB, 20 * GIB)
    assert machine.cpus == Cpus(8, 8, None, "8 of 64 CPUs (affinity)")


def test_systemd_user_slice_v2(tmp_path: Path) -> None:
    """An administrator's limit on the slice, none on what the user's manager makes below."""
    user = "/user.slice/user-1000.slice"
    here = f"{user}/user@1000.service/app.slice/app-term.scope"
    files = (
        memory_v2(CGROUP + user, 64 * GIB, 20 * GIB, inactive=4 * GIB, high=48 * GIB),
        memory_v2(CGROUP + here, "max", GIB),
        pids(CGROUP + user, 10_000, 400),
    )
    machine = read_machine(grow(tmp_path, host(), own(f"0::{here}"), mounts(mount_v2()), *files))
    assert machine.memory == (HOST, MemoryLimit(f"cgroup {user}", 48 * GIB, 32 * GIB))
    assert machine.pids_free == 9600


def test_hybrid(tmp_path: Path) -> None:
    """v2 is mounted, and we are somewhere in it, but the controllers are v1's."""
    unified = f"{CGROUP}/unified"
    lines = "4:memory:/jobs/a", "3:cpu,cpuacct:/", "1:name=systemd:/init.scope", "0::/init.scope"
    files = (
        memory_v1("/jobs", 6 * GIB, GIB),
        memory_v1("/jobs/a", NO_LIMIT, GIB),
        memory_v2(f"{unified}/init.scope", MIB, 0),  # bait: the controller is not v2's
        pids(f"{unified}/init.scope", 50, 10),  # this controller is in no v1 hierarchy, so it is v2's
    )
    mounted = mounts(mount_v1("memory"), mount_v1("cpu,cpuacct"), mount_v2(point=f"/{unified}"))
    root = grow(tmp_path, host(), own(*lines), mounted, *files)
    machine = read_machine(root)
    assert machine.memory == (HOST, MemoryLimit("cgroup /jobs", 6 * GIB, 5 * GIB))
    assert machine.pids_free == 40
    assert [group.version for group in ancestors("memory", root)] == [1, 1, 1]


def test_wsl(tmp_path: Path) -> None:
    version = {"proc/version": "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1)"}
    machine = read_machine(grow(tmp_path, host(cpus=16, total=8 * GIB, available=6 * GIB), version))
    assert machine.wsl
    assert machine.budget == MemoryLimit("host", 8 * GIB, 6 * GIB)


def test_cpus_that_are_not_plugged_in(tmp_path: Path) -> None:
    """Virtual machines allow every CPU that they might be given one day."""
    machine = read_machine(grow(tmp_path, host(cpus=240), {"sys/devices/system/cpu/online": "0-7"}))
    assert machine.cpus == Cpus(8, 8, None, "8 CPUs")


def test_v1_without_hierarchy(tmp_path: Path) -> None:
    """Where the parent is not charged for its children, neither it nor its own parent binds."""
    files = (
        memory_v1("/a/b/c", 8 * GIB, 0),
        memory_v1("/a/b", GIB, 0),
        memory_v1("/a", GIB, 0),
        {f"{CGROUP}/memory/a/b{leaf}/memory.use_hierarchy": "0" for leaf in ("", "/c")},
    )
    machine = read_machine(grow(tmp_path, host(), *v1("/a/b/c"), *files))
    assert [limit.name for limit in machine.memory] == ["host", "cgroup /a/b/c"]


def test_kernel_without_memavailable(tmp_path: Path) -> None:
    """Shared memory is part of Cached, but only swap could free it."""
    meminfo = "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 300 kB\nShmem: 50 kB\nSwapFree: 9 kB"
    machine = read_machine(grow(tmp_path, host(), {"proc/meminfo": meminfo}))
    assert machine.memory == (MemoryLimit("host", 1000 * 1024, 370 * 1024),)


def test_mount_point_with_a_blank(tmp_path: Path) -> None:
    line = mount_v2(top="/a\\040b", point="/mnt/my\\040groups")
    files = memory_v2("mnt/my groups/c d", GIB, 0)
    root = grow(tmp_path, host(), own("0::/a b/c d"), mounts(line), files)
    assert read_machine(root).memory[1].name == "cgroup /a b/c d"


def test_mounted_twice(tmp_path: Path) -> None:
    """The container's own view, and the host's, which shows the limit above: whichever comes first."""
    host_view = mount_v2(point="/host/cgroup")
    files = (
        memory_v2(CGROUP, 8 * GIB, 0),
        memory_v2("host/cgroup/pod", 2 * GIB, 0),
        memory_v2("host/cgroup/pod/c1", 8 * GIB, 0),
    )
    for name, lines in {"a": (mount_v2("/pod/c1"), host_view), "b": (host_view, mount_v2("/pod/c1"))}.items():
        root = grow(tmp_path / name, host(), own("0::/pod/c1"), mounts(*lines), *files)
        assert read_machine(root).budget == MemoryLimit("cgroup /pod", 2 * GIB, 2 * GIB)


def test_mounted_over(tmp_path: Path) -> None:
    """Of two mounts on one directory only the later is there."""
    files = memory_v2(CGROUP, GIB, 0), memory_v2(f"{CGROUP}/pod", 4 * GIB, 0)
    mounted = mounts(mount_v2("/"), mount_v2("/pod"))
    root = grow(tmp_path, host(), own("0::/pod"), mounted, *files)
    assert read_machine(root).memory == (HOST, MemoryLimit("cgroup /pod", GIB, GIB))
