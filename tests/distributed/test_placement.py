"""Placement of actors on a mocked cluster: free cores, reservations, suspected nodes."""

from types import SimpleNamespace

import pytest

from hundredfold.backends.settings import RaySettings
from hundredfold.core.errors import WorkerError
from hundredfold.distributed import placement as module
from hundredfold.distributed.placement import RESERVATION_SECONDS, SUSPECT_SECONDS, ActorPlacement


class Cluster:
    """A mock of Ray: reports its nodes and records the options of started actors."""

    def __init__(self, free=0.0, here="", **cores):
        self.cores, self.free, self.here, self.started = cores, free, here, []

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: self.here)

    def nodes(self):
        return [
            {"NodeID": node, "Alive": cores is not None, "Resources": {"CPU": cores} if cores else {}}
            for node, cores in self.cores.items()
        ]

    def cluster_resources(self):
        return {"CPU": sum(cores or 0.0 for cores in self.cores.values())}

    def available_resources(self):
        return {"CPU": self.free}

    def remote(self, *kind):
        """Serves as `ray.remote(cls)` and as `cls.remote()`."""
        return self

    def options(self, **options):
        self.started.append(options)
        return self


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances with `sleep` only."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def placement_on(cluster, **settings):
    return ActorPlacement(cluster, RaySettings(**settings))


def avoided(options):
    selector = options.get("label_selector", {module.NODE_LABEL: "!in()"})[module.NODE_LABEL]
    return set(selector.removeprefix("!in(").removesuffix(")").split(",")) - {""}


def test_suspected_node_is_avoided_and_free_cores_elsewhere_are_used(clock):
    cluster = Cluster(free=8.0, one=8.0, two=8.0)
    placement = placement_on(cluster)
    placement.suspect("one", used_cores=8)
    placement.start_replacement(16)
    assert avoided(cluster.started[0]) == {"one"}
    assert cluster.started[0]["num_cpus"] == 1


def test_free_cores_of_a_suspected_node_do_not_count_and_are_not_waited_for(clock):
    placement = placement_on(cluster := Cluster(free=6.0, one=8.0, two=8.0))
    placement.suspect("one", used_cores=2)
    with pytest.warns(UserWarning, match="free cores for 0 of 1"):
        placement.start_replacement(10)
    assert cluster.started[0]["num_cpus"] == 0
    assert clock.now == 100.0


@pytest.mark.parametrize("cores", [{"one": 4.0}, {"one": 4.0, "head": 0.0}, {"one": 4.0, "two": None}])
def test_only_node_with_cores_is_never_suspected(clock, cores):
    placement = placement_on(Cluster(**cores))
    placement.suspect("one", used_cores=1)
    assert not placement.suspected


def test_actor_of_unknown_node_makes_no_node_suspected(clock):
    placement = placement_on(Cluster(one=4.0, two=4.0))
    placement.suspect("", used_cores=1)
    assert not placement.suspected


def test_node_of_the_driver_is_never_suspected(clock):
    placement = placement_on(Cluster(here="one", one=4.0, two=4.0))
    placement.suspect("one", used_cores=1)
    assert not placement.suspected


def test_expired_suspicion_does_not_prevent_a_new_one(clock):
    placement = placement_on(Cluster(free=4.0, one=4.0, two=4.0))
    placement.suspect("one", used_cores=4)
    clock.sleep(SUSPECT_SECONDS + 1)
    placement.suspect("two", used_cores=4)
    assert placement.suspected.keys() == {"two"}


def test_core_is_reserved_once_even_before_ray_reports_it_as_used(clock):
    cluster = Cluster(free=2.0, one=4.0, two=4.0)
    placement = placement_on(cluster)
    placement.suspect("one", used_cores=3)
    with pytest.warns(UserWarning, match="free cores for 0 of 1"):
        started = [placement.start_replacement(6) for _ in range(3)]
    assert [one.cpus for one in started] == [1, 0, 0]
    assert [options["num_cpus"] for options in cluster.started] == [1, 0, 0]


def test_fractions_of_cores_add_up(clock):
    placement = placement_on(cluster := Cluster(free=1.0, one=1.0), actor_cpus=0.2)
    for _ in range(5):
        placement.start_replacement(5)
    assert [options["num_cpus"] for options in cluster.started] == [0.2] * 5
    assert clock.now == 100.0


def test_reservations_expire_once_ray_reports_them(clock):
    placement = placement_on(cluster := Cluster(free=1.0, one=2.0))
    placement.start_replacement(2)
    placement.start_replacement(2)
    assert [options["num_cpus"] for options in cluster.started] == [1, 1]
    assert clock.now == pytest.approx(100 + RESERVATION_SECONDS, abs=0.2)


def test_suspicion_ends_when_ray_lists_the_node_as_dead(clock):
    cluster = Cluster(free=4.0, one=4.0, two=4.0)
    placement = placement_on(cluster)
    placement.suspect("one", used_cores=4)
    cluster.cores["one"] = None
    placement.start_replacement(4)
    assert avoided(cluster.started[0]) == set()


def test_suspicion_ends_when_ray_keeps_listing_the_node_as_alive(clock):
    cluster = Cluster(free=4.0, one=4.0, two=4.0)
    placement = placement_on(cluster)
    placement.suspect("one", used_cores=4)
    clock.sleep(SUSPECT_SECONDS - 1)
    placement.start_replacement(8)
    clock.sleep(2)
    placement.start_replacement(8)
    assert [avoided(options) for options in cluster.started] == [{"one"}, set()]


def test_placement_waits_for_the_cores_of_a_lost_actor(clock):
    cluster = Cluster(free=0.0, one=2.0)
    placement = placement_on(cluster)
    sleep = clock.sleep

    def sleep_and_free(seconds):
        sleep(seconds)
        cluster.free = 1.0 if clock.now > 101 else 0.0

    clock.sleep = sleep_and_free
    placement.start_replacement(2)
    assert cluster.started[0]["num_cpus"] == 1
    assert 101 < clock.now < 102


def test_placement_does_not_wait_in_a_cluster_that_became_too_small(clock):
    placement = placement_on(cluster := Cluster(free=0.0, one=2.0, two=None))
    with pytest.warns(UserWarning, match="free cores for 0 of 1"):
        placement.start_replacement(4)
    assert cluster.started[0]["num_cpus"] == 0
    assert clock.now == 100.0


def test_actors_without_a_free_core_share_cores(clock):
    placement = placement_on(cluster := Cluster(free=2.0, one=2.0), placement_timeout=3.0)
    with pytest.warns(UserWarning, match="free cores for 2 of 3"):
        placement.start_actors(3)
    assert [options["num_cpus"] for options in cluster.started] == [1, 1, 0]
    assert clock.now == pytest.approx(103, abs=0.2)


def test_actors_without_core_request_never_wait(clock):
    placement = placement_on(cluster := Cluster(free=0.0, one=2.0), actor_cpus=0)
    placement.start_actors(2)
    placement.start_replacement(2)
    assert [options["num_cpus"] for options in cluster.started] == [0, 0, 0]
    assert clock.now == 100.0


def test_a_cluster_that_takes_too_long_to_start_is_a_worker_error(monkeypatch):
    """On a busy machine Ray gives up with a plain Exception; other backends may run instead."""
    reason = "The current node timed out during startup"

    def init(**options):
        raise Exception(f"{reason}. This could happen because the GCS has become overloaded.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(module, "load_ray", lambda: ray)
    with pytest.raises(WorkerError, match=f"Ray cannot start here: {reason}\\.$"):
        module.connect(RaySettings(), 1)
