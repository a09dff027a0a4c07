"""Further processes of a population on the nodes of a cluster, which are threads of this process here."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rulka.cluster import ActorLostError, Node
from rulka.study import nodes as nodes_module
from rulka.study.nodes import deal, helped
from tests.waiting import PATIENCE_S


def node(number: int, num_cpus: int) -> Node:
    return Node(f"n{number}", f"node-{number}", num_cpus, 0, number == 0)


class Nodes:
    """See `rulka.cluster.RayCluster`: what is called works in a thread of this process."""

    def __init__(self, there: Sequence[Node]) -> None:
        self.there, self.is_closed, self.pool = list(there), False, ThreadPoolExecutor()

    def nodes(self) -> Sequence[Node]:
        return self.there

    def start(self, node: Node, num_cpus: int, kind: type, *arguments: Any) -> Any:
        return kind(*arguments) if node in self.there else None

    def call(self, actor: Any, method: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        if actor is None:
            answer.set_exception(ActorLostError("no such node"))
            return answer
        return self.pool.submit(getattr(actor, method), *arguments)

    def wait(self, references: Sequence[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        time.sleep(0.01)
        return [reference for reference in references if reference.done()]

    def get(self, reference: Future[Any]) -> Any:
        return reference.result()

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)

    def close(self) -> None:
        self.is_closed = True


def test_serial_turns_take_a_cpu_each_and_others_a_node() -> None:
    there = [node(0, 2), node(1, 3), node(2, 0), node(3, 4)]
    assert [count for _, count in deal(there, 20, is_serial=True)] == [1, 3, 4]
    assert [each.name for each, _ in deal(there, 20, is_serial=False)] == ["node-1", "node-2", "node-3"]
    assert [count for _, count in deal(there, 4, is_serial=True)] == [1, 2], "no more than there are members"


def test_processes_work_in_the_folder_that_nodes_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nodes_module, "END_GRACE_S", PATIENCE_S)
    there = [node(0, 2), node(1, 2)]
    cluster, said = Nodes(there), []
    code = "import tempfile; tempfile.mkstemp(prefix='did-', dir='.')"
    with helped(cluster, [sys.executable, "-c", code], deal(there, 9, is_serial=True), said.append):
        pass
    assert len(list(tmp_path.glob("did-*"))) == 3
    assert said == ["1 more process on node node-0", "2 more processes on node node-1"]
    assert cluster.is_closed


def test_what_failed_or_does_not_end_on_a_node_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nodes_module, "END_GRACE_S", PATIENCE_S)
    cluster, said = Nodes([node(1, 2)]), []
    with helped(
        cluster, [sys.executable, "-c", "raise SystemExit(3)"], [(node(1, 2), 1), (node(7, 1), 1)], said.append
    ):
        pass
    assert said[2:] == ["node node-7: no such node", "node node-1: processes ended with (3,)"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nodes_module, "END_GRACE_S", 0.0)
    cluster, said = Nodes([node(1, 2)]), []
    with helped(cluster, [sys.executable, "-c", ""], [(node(1, 2), 1)], said.append):
        pass
    assert said[1:] == ["node node-1: its processes did not end, and are ended now"]
    assert cluster.is_closed
