"""Of a job that several kernels send to Modal at once the code runs once: the claims there decide."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clusters.modal import ModalServer

from .kernels import Kernel, until

_CELL = """
from types import SimpleNamespace
from clusterkernel.backends import registry

def once(name):
    import os, time
    with open(name, "a") as file:
        file.write(os.environ["CLUSTERKERNEL_PLATFORM_ID"] + "\\n")
    time.sleep(0.3)
    return os.environ["CLUSTERKERNEL_PLATFORM_ID"]

def send(job, at):
    # What the thread that sends does, at a moment that another kernel knows, too.
    time.sleep(max(0.0, at - time.time()))
    job.folder.prepare()
    job.folder.add_submission(registry.get("modal").submit(job.folder))
"""


@pytest.fixture
def kernels(modal_server: ModalServer, tmp_path: Path, own_folders: Path) -> Iterator[list[Kernel]]:
    made = [Kernel(tmp_path, {}) for _ in range(2)]
    for kernel in made:
        kernel.do(_CELL)
    yield made
    for kernel in made:
        kernel.close()


def _race(kernels: list[Kernel], server: ModalServer, folder: Path, seeds: range) -> None:
    maker, other = kernels
    # Made, and not sent: that comes.
    maker.do("submission._submitter = lambda: SimpleNamespace(submit=lambda folder: None)")
    maker.do(
        "ex = ck.Executor('modal', time='5m', name='race'); "
        f"jobs = {{seed: ex.submit(once, f'{folder}/race-{{seed}}') for seed in {list(seeds)}}}"
    )
    ids = dict(zip(seeds, maker.do("[job.id for job in jobs.values()]"), strict=True))
    other.do(f"jobs = {{seed: lookup.job(job) for seed, job in {ids}.items()}}")
    for seed in seeds:
        chance = random.Random(seed)
        lost = chance.randint(0, 2)  # answers: the client sends these again
        server.fail({"method": "FunctionMap", "status": "UNAVAILABLE", "times": lost, "after": True})
        before, moment = server.ask()["calls"], time.time() + 0.2
        moments = [moment, moment + chance.choice([0.0, chance.uniform(0.0, 0.3)])]
        chance.shuffle(moments)
        sends = [f"send(jobs[{seed}], {when})" for when in moments]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda kernel, code: kernel.do(code), kernels, sends))
        assert server.ask()["calls"] == before + 2 + lost
        values = [kernel.do(f"jobs[{seed}].result(60)") for kernel in kernels]
        assert values[0] == values[1]
    until(lambda: not (has := server.ask())["containers"] and not has["queued"], "the end of all copies")
    for seed in seeds:
        [ran] = (folder / f"race-{seed}").read_text().split()
        assert [kernel.do(f"jobs[{seed}].platform_id") for kernel in kernels] == [ran, ran]


@pytest.mark.timeout(240)
def test_of_copies_that_two_kernels_send_at_once_one_runs(
    kernels: list[Kernel], modal_server: ModalServer, tmp_path: Path
) -> None:
    _race(kernels, modal_server, tmp_path, range(3))


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_of_many_copies_that_two_kernels_send_at_once_one_runs(
    kernels: list[Kernel], modal_server: ModalServer, tmp_path: Path
) -> None:
    _race(kernels, modal_server, tmp_path, range(100, 130))
