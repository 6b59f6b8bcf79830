"""CPU steal time."""

from collections import namedtuple

import psutil
import pytest

from hundredfold.profiling.measure import StealTimeMonitor

LinuxTimes = namedtuple("LinuxTimes", "user nice system idle iowait irq softirq steal guest")
OtherTimes = namedtuple("OtherTimes", "user system idle")


def monitor_between(monkeypatch, before, after):
    monkeypatch.setattr(psutil, "cpu_times", lambda: before)
    monitor = StealTimeMonitor()
    monkeypatch.setattr(psutil, "cpu_times", lambda: after)
    return monitor


def test_steal_is_a_fraction_of_the_time_of_all_cores(monkeypatch):
    before = LinuxTimes(100, 0, 50, 1000, 0, 0, 0, 10, 7)
    after = LinuxTimes(160, 0, 50, 1020, 0, 0, 0, 30, 47)
    assert monitor_between(monkeypatch, before, after).steal_fraction() == pytest.approx(0.2)


def test_steal_is_zero_if_no_time_has_passed(monkeypatch):
    times = LinuxTimes(1, 2, 3, 4, 5, 6, 7, 8, 0)
    assert monitor_between(monkeypatch, times, times).steal_fraction() == 0.0


def test_steal_is_zero_where_the_system_does_not_report_it(monkeypatch):
    monitor = monitor_between(monkeypatch, OtherTimes(1, 2, 3), OtherTimes(2, 3, 4))
    assert monitor.steal_fraction() == 0.0


def test_steal_on_this_machine_is_a_fraction():
    assert 0.0 <= StealTimeMonitor().steal_fraction() <= 1.0
