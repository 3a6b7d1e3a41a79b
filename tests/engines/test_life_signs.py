"""Silent workers are found by what this process has seen for itself."""

from __future__ import annotations

from windlass.engines.life_signs import LifeSigns


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def watcher() -> tuple[LifeSigns, Clock]:
    clock = Clock()
    return LifeSigns(2.5, 1.0, clock), clock


def test_a_worker_whose_sign_does_not_change_is_silent():
    signs, clock = watcher()
    for second in range(4):
        clock.now += 0.9
        signs.look({"stopped": "12:00:00", "works": f"12:00:0{second}"})
        assert (signs.silent == ["stopped"]) is (second >= 3)
    signs.look({"stopped": "12:00:09", "works": "12:00:09"})
    assert signs.silent == []


def test_a_clock_of_the_server_that_jumps_makes_nobody_silent():
    signs, clock = watcher()
    for sign in ("12:00:00", "15:00:00", "09:00:00", "09:00:01"):
        clock.now += 0.9
        signs.look({"works": sign})
        assert signs.silent == []


def test_time_that_the_watcher_was_stopped_counts_little():
    signs, clock = watcher()
    signs.look({"works": "12:00:00"})
    clock.now += 3600
    signs.look({"works": "12:00:00"})
    assert signs.silent == []
    signs.look({"works": "12:00:01"})
    clock.now += 0.9
    signs.look({"works": "12:00:01"})
    assert signs.silent == []


def test_a_worker_that_nobody_tells_of_is_not_known_and_not_silent():
    signs, clock = watcher()
    signs.look({"works": "12:00:00"})
    assert signs.knows("works")
    clock.now += 9
    signs.look({})
    assert not signs.knows("works")
    assert signs.silent == []
