"""Finding room for actors, and keeping away from nodes that seem lost. The cluster is played."""

from types import SimpleNamespace

import pytest

from hundredfold.distributed import placement as module
from hundredfold.distributed.placement import FORGIVE_SECONDS, PROMISE_SECONDS, Places
from hundredfold.distributed.settings import RaySettings


class Cluster:
    """What Ray says of its nodes, and the options of the actors that are asked of it."""

    def __init__(self, free=0.0, here="", **cores):
        self.cores, self.free, self.here, self.hired = cores, free, here, []

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: self.here)

    def nodes(self):
        return [
            {
                "NodeID": node,
                "Alive": cores is not None,
                "Resources": {"CPU": cores} if cores else {},
            }
            for node, cores in self.cores.items()
        ]

    def cluster_resources(self):
        return {"CPU": sum(cores or 0.0 for cores in self.cores.values())}

    def available_resources(self):
        return {"CPU": self.free}

    def remote(self, *kind):
        """Of a class, or of an actor with its options."""
        return self

    def options(self, **options):
        self.hired.append(options)
        return self


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves when somebody sleeps."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def places_on(cluster, **settings):
    return Places(cluster, RaySettings(**settings))


def avoided(options):
    selector = options.get("label_selector", {module.NODE_LABEL: "!in()"})[module.NODE_LABEL]
    return set(selector.removeprefix("!in(").removesuffix(")").split(",")) - {""}


def test_a_suspect_is_avoided_and_what_is_free_elsewhere_is_taken(clock):
    cluster = Cluster(free=8.0, one=8.0, two=8.0)
    places = places_on(cluster)
    places.suspect("one", taken_cores=8)
    places.hire_another(16)
    assert avoided(cluster.hired[0]) == {"one"}
    assert cluster.hired[0]["num_cpus"] == 1


def test_free_cores_of_a_suspect_are_nobodys_and_are_not_waited_for(clock):
    places = places_on(cluster := Cluster(free=6.0, one=8.0, two=8.0))
    places.suspect("one", taken_cores=2)
    with pytest.warns(UserWarning, match="free cores for 0 of 1"):
        places.hire_another(10)
    assert cluster.hired[0]["num_cpus"] == 0
    assert clock.now == 100.0


@pytest.mark.parametrize(
    "cores", [{"one": 4.0}, {"one": 4.0, "head": 0.0}, {"one": 4.0, "two": None}]
)
def test_the_only_node_with_cores_is_kept(clock, cores):
    places = places_on(Cluster(**cores))
    places.suspect("one", taken_cores=1)
    assert not places.suspects


def test_nobody_is_blamed_for_an_actor_that_was_nowhere_yet(clock):
    places = places_on(Cluster(one=4.0, two=4.0))
    places.suspect("", taken_cores=1)
    assert not places.suspects


def test_the_node_we_are_on_ourselves_is_never_under_suspicion(clock):
    places = places_on(Cluster(here="one", one=4.0, two=4.0))
    places.suspect("one", taken_cores=1)
    assert not places.suspects


def test_an_old_suspicion_does_not_keep_a_new_one_away(clock):
    places = places_on(Cluster(free=4.0, one=4.0, two=4.0))
    places.suspect("one", taken_cores=4)
    clock.sleep(FORGIVE_SECONDS + 1)
    places.suspect("two", taken_cores=4)
    assert places.suspects.keys() == {"two"}


def test_a_core_is_promised_once_also_before_ray_knows_that_it_is_taken(clock):
    cluster = Cluster(free=2.0, one=4.0, two=4.0)
    places = places_on(cluster)
    places.suspect("one", taken_cores=3)
    with pytest.warns(UserWarning, match="free cores for 0 of 1"):
        hired = [places.hire_another(6) for _ in range(3)]
    assert [one.cpus for one in hired] == [1, 0, 0]
    assert [options["num_cpus"] for options in cluster.hired] == [1, 0, 0]


def test_parts_of_cores_add_up(clock):
    places = places_on(cluster := Cluster(free=1.0, one=1.0), actor_cpus=0.2)
    for _ in range(5):
        places.hire_another(5)
    assert [options["num_cpus"] for options in cluster.hired] == [0.2] * 5
    assert clock.now == 100.0


def test_promises_are_forgotten_when_ray_knows_of_them(clock):
    places = places_on(cluster := Cluster(free=1.0, one=2.0))
    places.hire_another(2)
    places.hire_another(2)
    assert [options["num_cpus"] for options in cluster.hired] == [1, 1]
    assert clock.now == pytest.approx(100 + PROMISE_SECONDS, abs=0.2)


def test_a_suspicion_ends_when_ray_confirms_it(clock):
    cluster = Cluster(free=4.0, one=4.0, two=4.0)
    places = places_on(cluster)
    places.suspect("one", taken_cores=4)
    cluster.cores["one"] = None
    places.hire_another(4)
    assert avoided(cluster.hired[0]) == set()


def test_a_suspicion_ends_when_ray_does_not_confirm_it_for_long(clock):
    cluster = Cluster(free=4.0, one=4.0, two=4.0)
    places = places_on(cluster)
    places.suspect("one", taken_cores=4)
    clock.sleep(FORGIVE_SECONDS - 1)
    places.hire_another(8)
    clock.sleep(2)
    places.hire_another(8)
    assert [avoided(options) for options in cluster.hired] == [{"one"}, set()]


def test_cores_of_a_lost_actor_are_waited_for(clock):
    cluster = Cluster(free=0.0, one=2.0)
    places = places_on(cluster)
    sleep = clock.sleep

    def freed(seconds):
        sleep(seconds)
        cluster.free = 1.0 if clock.now > 101 else 0.0

    clock.sleep = freed
    places.hire_another(2)
    assert cluster.hired[0]["num_cpus"] == 1
    assert 101 < clock.now < 102


def test_a_cluster_that_became_too_small_is_not_waited_for(clock):
    places = places_on(cluster := Cluster(free=0.0, one=2.0, two=None))
    with pytest.warns(UserWarning, match="free cores for 0 of 1"):
        places.hire_another(4)
    assert cluster.hired[0]["num_cpus"] == 0
    assert clock.now == 100.0


def test_at_the_start_whoever_finds_no_core_shares_the_others(clock):
    places = places_on(cluster := Cluster(free=2.0, one=2.0), place_timeout=3.0)
    with pytest.warns(UserWarning, match="free cores for 2 of 3"):
        places.hire_all(3)
    assert [options["num_cpus"] for options in cluster.hired] == [1, 1, 0]
    assert clock.now == pytest.approx(103, abs=0.2)


def test_actors_that_ask_for_no_cores_never_wait(clock):
    places = places_on(cluster := Cluster(free=0.0, one=2.0), actor_cpus=0)
    places.hire_all(2)
    places.hire_another(2)
    assert [options["num_cpus"] for options in cluster.hired] == [0, 0, 0]
    assert clock.now == 100.0
