"""Tests in processes that are forked once all tests are collected: `pytest --processes NUMBER`.

Importing and collecting takes 10 s of processor time, which a forked process does not repeat. Each process takes the
next file when it has done one. Files that start real processes come first: they take longest, and wait most.
"""

import itertools
import os
import random
import select
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest
from _pytest.capture import FDCapture
from _pytest.runner import pytest_sessionfinish, runtestprotocol

from fedappeal.system.process_end import end_with_parent

OWNER = "FEDAPPEAL_TESTS_OWNER"
"""Variable with the process id of the pytest that the processes were forked from."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="processes that share the files of tests")


@dataclass(frozen=True)
class Work:
    """The files of tests, and how the processes share them.

    Attributes:
        session: of the pytest that has collected the tests.
        files: tests by file.
        numbers: a pipe with the numbers of the files that no process has taken.
        ended: a pipe whose other end is closed when all processes shall end.
    """

    session: pytest.Session
    files: list[list[pytest.Item]]
    numbers: int
    ended: int

    def tests(self) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
        """Take file by file; yield each test and the one after it in its file."""
        factory = self.session.config._tmp_path_factory  # type: ignore[attr-defined]
        base = factory.getbasetemp()
        for number in iter(lambda: os.read(self.numbers, 2), b""):
            items = self.files[int.from_bytes(number)]
            # A folder for each file: to find a free name for a test's folder, all names beside it are read.
            factory._basetemp = base / str(int.from_bytes(number))
            factory._basetemp.mkdir(mode=0o700)
            for item, following in itertools.zip_longest(items, items[1:]):
                if select.select([self.ended], [], [], 0)[0]:
                    return
                yield item, following


@dataclass(eq=False)  # plugins are hashed
class Worker:
    """A forked process, and a plugin of it that sends what comes of its tests."""

    work: Work
    results: Connection

    def run(self) -> None:
        config = self.work.session.config
        config.pluginmanager.register(self)
        try:
            for item, following in self.work.tests():
                self.results.send(("begun", item.nodeid))
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        finally:
            pytest_sessionfinish(self.work.session)  # of what is still set up

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
            self.results.send(("report", data))
        return True

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if when == "runtest":  # those of the collection were recorded before this process was forked
            place = warning_message.filename, warning_message.lineno
            sent = warnings.WarningMessage(str(warning_message.message), warning_message.category, *place)
            content = {"warning_message": sent, "when": when, "nodeid": nodeid, "location": location}
            self.results.send(("warning", content))


def _become_worker(work: Work, results: Connection, parent: int) -> NoReturn:
    """Do tests, in a process just forked, and end it."""
    end_with_parent(parent)
    os.environ[OWNER] = str(parent)
    random.seed()  # each draws numbers of its own
    capture = work.session.config.pluginmanager.getplugin("capturemanager")._global_capturing
    try:
        for stream in (capture.out, capture.err):
            if isinstance(stream, FDCapture):  # what tests print goes to a file of this process
                with tempfile.TemporaryFile() as file:
                    os.dup2(file.fileno(), stream.tmpfile.fileno())
        Worker(work, results).run()
        os._exit(0)
    except KeyboardInterrupt:
        os._exit(130)
    except BaseException:
        results.send(("broken", traceback.format_exc()))
    finally:
        os._exit(1)


@dataclass
class Results:
    """What comes from one process."""

    session: pytest.Session
    pid: int
    test: str = ""
    problem: str = ""

    def take(self, kind: str, content: Any) -> None:
        hook = self.session.config.hook
        if kind == "begun":
            self.test = content
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=self.session.config, data=content)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=content)
        else:
            self.problem = content

    def end(self) -> None:
        """Wait for the end of the process; where it did not end well, its test has failed, and all others end."""
        if status := os.waitpid(self.pid, 0)[1]:
            why = f"the process of this test ended with {os.waitstatus_to_exitcode(status)}\n{self.problem}"
            place = (self.test.partition("::")[0], None, self.test)
            failed = pytest.TestReport(self.test, place, {}, "failed", why, "call")
            self.session.config.hook.pytest_runtest_logreport(report=failed)
            self.session.shouldfail = self.session.shouldfail or "a process of the tests has ended"


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Do the tests in forked processes, where that is asked for."""
    number = session.config.option.processes
    if number < 1 or session.testsfailed or session.config.option.collectonly:
        return None
    files = [list(items) for _, items in itertools.groupby(session.items, lambda item: item.path)]
    files.sort(key=lambda items: all(item.get_closest_marker("e2e") is None for item in items))
    numbers, waiting = os.pipe()
    os.write(waiting, b"".join(number.to_bytes(2) for number in range(len(files))))
    os.close(waiting)
    ended, end = os.pipe()
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # one for all
    workers, parent = dict[Any, Results](), os.getpid()
    for _ in range(number):
        receiver, sender = Pipe(duplex=False)
        if (pid := os.fork()) == 0:
            os.close(end)
            _become_worker(Work(session, files, numbers, ended), sender, parent)
        sender.close()
        workers[receiver] = Results(session, pid)
    try:
        while workers:
            for receiver in wait(list(workers)):
                try:
                    workers[receiver].take(*receiver.recv())  # type: ignore[union-attr]
                except EOFError:
                    workers.pop(receiver).end()
            if end != -1 and (session.shouldfail or session.shouldstop):
                os.close(end)
                end = -1
    finally:
        if end != -1:
            os.close(end)
        for results in workers.values():
            os.waitpid(results.pid, 0)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True
