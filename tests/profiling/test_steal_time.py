"""What the host of a virtual machine takes away."""

import pytest

from hundredfold.profiling import measure
from hundredfold.profiling.measure import HostWatch, cpu_times


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """Write what the kernel counts."""
    path = tmp_path / "stat"
    monkeypatch.setattr(measure, "CPU_TIMES", path)
    return lambda *ticks: path.write_text(f"cpu  {' '.join(map(str, ticks))} 7 7\ncpu0 1 2 3\n")


def test_the_share_is_of_all_cores_since_the_watch_began(counted):
    counted(100, 0, 50, 1000, 0, 0, 0, 10)
    watch = HostWatch()
    counted(160, 0, 50, 1020, 0, 0, 0, 30)
    assert watch.stolen() == pytest.approx(0.2)


def test_no_time_at_all_is_nothing_taken(counted):
    counted(1, 2, 3, 4, 5, 6, 7, 8)
    assert HostWatch().stolen() == 0.0


def test_where_nothing_is_counted_nothing_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "CPU_TIMES", tmp_path / "missing")
    assert HostWatch().stolen() == 0.0


def test_this_machine_counts_on():
    assert len(cpu_times()) == measure.COUNTED
    assert 0.0 <= HostWatch().stolen() <= 1.0
