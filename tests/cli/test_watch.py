"""`hundredfold watch`: replay pages in a real browser."""

import json
import re

import pytest

import hundredfold
from helpers.browser import BROWSER, REPLAY_PROBE, WatchedPage, inspect_page, open_chromium
from hundredfold.cli import main

PLAY_VIDEO = """async () => {
  const video = document.querySelector("video");
  await video.play();
  while (video.currentTime === 0) await new Promise((done) => setTimeout(done, 20));
  return {
    width: video.videoWidth,
    height: video.videoHeight,
    duration: video.duration,
    played: video.currentTime,
    shown: video.getBoundingClientRect().width,
  };
}"""


def call(*argv):
    try:
        return main.main([str(argument) for argument in argv])
    except SystemExit as exit_:
        return exit_.code


def page_data(page):
    found = re.search(r'<script type="application/json">(.*?)</script>', page.read_text("utf-8"), re.S)
    return json.loads(found[1])


def test_two_policies_play_the_same_episode_side_by_side(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ("watch", "cage2", "--policy", "reactive", "--beside", "sleep", "--episodes", "2", "--red", "meander")
    assert call(*argv) == 0
    page = tmp_path / capsys.readouterr().out.strip()
    assert page == tmp_path / "videos" / "cage2-reactive-sleep-seed9999.html"
    first, second = page_data(page)["episodes"]
    assert [record["policy"] for record in first] == ["reactive", "sleep"]
    # Nothing is on a host before red's first scan, so both policies face the same start.
    assert first[0]["red_target"][:2] == first[1]["red_target"][:2]
    assert first[0]["red"] == "meander"
    assert first[0]["rewards"] != second[0]["rewards"]
    before = page.read_bytes()
    assert call(*argv) == 0
    assert page.read_bytes() == before


def test_an_unknown_policy_is_refused_with_the_known_ones(capsys):
    assert call("watch", "cage2", "--policy", "reactiv") == 2
    assert "reactive" in capsys.readouterr().err


def check_replay(seen, width):
    assert seen["ready"] == "ready"
    assert seen["after_arrows"] == seen["first_position"] + 1
    assert seen["dragged"] == seen["first_position"] + 7
    assert seen["playing"]
    assert seen["paused"]
    assert seen["dragged"] < seen["played_to"] <= seen["last_position"]
    assert seen["wanted_width"] <= seen["given_width"] <= width


@BROWSER
@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_cage2_page_is_played_by_keys_slider_and_button(width, capsys, tmp_path):
    page = tmp_path / "replay.html"
    assert call("watch", "cage2", "--policy", "sleep", "--beside", "reactive", "--output", page) == 0
    for words in ("sleep: no defence", "reactive: restores hosts", "b_line: knows the way to the operational server"):
        assert words in page.read_text("utf-8")
    seen = inspect_page(page, width, tmp_path / "profile", REPLAY_PROBE)
    check_replay(seen, width)
    assert seen["now"] == "step 100 of 100"
    assert seen["last_position"] == 100
    assert "Blue has not acted yet" in seen["first"]
    # A sleeping blue ends with the OT service stopped.
    assert "OT service stopped" in seen["last"]
    assert "Impact Op_Server0" in seen["last"]
    for host in ("User4", "Enterprise2", "Op_Server0"):
        assert host in seen["first"]


def test_a_day_of_dvrp_is_recorded_with_calls_offers_and_routes(capsys, tmp_path):
    page = tmp_path / "day.html"
    assert call("watch", "dvrp", "--policy", "random", "--city", "hubs", "--output", page) == 0
    data = page_data(page)
    ((day,),) = data["episodes"]
    assert {made["response"] for made in day["calls"]} >= {"accepted", "refused"}
    for solution in (day["before"], day["after"]):
        driven = sum(sum(route["leg_minutes"]) for route in solution["routes"])
        assert driven == pytest.approx(solution["driving_minutes"], abs=0.5)
        for route in solution["routes"]:
            departs = [route["start_minutes"], *(minute + day["service_minutes"] for minute in route["stop_minutes"])]
            arrives = [*route["stop_minutes"], route["end_minutes"]]
            for departure, leg, arrival in zip(departs, route["leg_minutes"], arrives, strict=True):
                assert departure + leg <= arrival + 0.05
    served = sorted(stop for route in day["after"]["routes"] for stop in route["stops"])
    assert served == list(range(1, 2 * len(day["calls"]) + 1))


def test_the_same_seed_gives_the_same_page_of_a_day(capsys, tmp_path):
    pages = [tmp_path / f"{name}.html" for name in ("first", "second", "other")]
    for page, seed in zip(pages, (3, 3, 4), strict=True):
        assert call("watch", "dvrp", "--policy", "random", "--seed", seed, "--output", page) == 0
    first, second, other = (page.read_bytes() for page in pages)
    assert first == second != other


def test_two_policies_answer_the_same_calls_side_by_side(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("watch", "dvrp", "--policy", "none", "--beside", "random", "--episodes", "2") == 0
    page = tmp_path / "videos" / "dvrp-none-random-seed9999.html"
    assert capsys.readouterr().out.strip() == str(page.relative_to(tmp_path))
    for first, second in page_data(page)["episodes"]:
        assert (first["policy"], second["policy"]) == ("none", "random")
        for one, other in zip(first["calls"], second["calls"], strict=True):
            assert (one["customer"], one["cells"], one["requested"]) == (
                other["customer"],
                other["cells"],
                other["requested"],
            )
        assert {made["response"] for made in first["calls"]} == {"no offer"}
        assert first["before"]["driving_minutes"] == second["before"]["driving_minutes"]
        assert second["after"]["driving_minutes"] != second["before"]["driving_minutes"]


def test_policies_with_other_days_are_not_shown_side_by_side(capsys, tmp_path):
    tiny = {"num_envs": 2, "epochs": 1, "eval_episodes": 1, "report": False, "num_customers": 5, "future_samples": 2}
    runs = [hundredfold.train("dvrp", city=city, save_dir=tmp_path, name=city, **tiny) for city in ("hubs", "spread")]
    assert call("watch", runs[0].path, "--beside", runs[1].path) == 2
    assert "hubs and spread have different days" in capsys.readouterr().err
    # A policy by name plays the days of the run.
    assert call("watch", runs[0].path, "--beside", "none") == 0
    page = runs[0].path / "videos" / "dvrp-hubs-none-seed9999.html"
    assert [len(day["calls"]) for day in page_data(page)["episodes"][0]] == [5, 5]


def test_watching_dvrp_without_a_policy_names_some(capsys):
    assert call("watch", "dvrp") == 2
    assert "--policy" in capsys.readouterr().err


@BROWSER
@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_dvrp_page_is_played_by_keys_slider_and_button(width, capsys, tmp_path):
    page = tmp_path / "day.html"
    assert call("watch", "dvrp", "--policy", "greedy_expected", "--beside", "none", "--output", page) == 0
    hover = """press("End");
  for (const kind of ["row", "van"]) {
    find(`.${kind}`).dispatchEvent(new Event("pointerenter"));
    seen[kind] = find(".detail").textContent;
    find(`.${kind}`).dispatchEvent(new Event("pointerleave"));
  }"""
    probe = REPLAY_PROBE.replace('press("ArrowLeft");', "").replace('press("End");', hover)
    seen = inspect_page(page, width, tmp_path / "profile", probe)
    calls = len(page_data(page)["episodes"][0][0]["calls"])
    assert seen["first_position"] == -10 * calls
    # During the calls an arrow key goes to the next call, in the day to the next minute.
    assert seen["after_arrows"] == seen["first_position"] + 20
    assert seen["dragged"] == seen["first_position"] + 7
    assert seen["dragged"] < seen["played_to"] < seen["last_position"]
    assert f"1 of {calls}" in seen["first"]
    assert "Call 1: customer" in seen["first"]
    assert f"{calls} of {calls}" in seen["last"]
    assert "drops off" in seen["last"]
    assert re.match(r"Call \d+: customer \d+, .* Requested pickup .*; .*\.", seen["row"])
    assert re.match(r"Van \d+ is back at the depot since \d\d:\d\d\.", seen["van"])
    assert seen["wanted_width"] <= seen["given_width"] <= width


def test_watching_a_run_writes_videos_into_it_and_shows_them_in_its_report(capsys, tmp_path):
    tiny = {"num_envs": 2, "num_steps": 8, "epochs": 1, "eval_episodes": 1, "backend": "in_process"}
    run = hundredfold.train("cartpole", save_dir=tmp_path, name="run", **tiny)
    assert "<video controls" not in (run.path / "report.html").read_text("utf-8")
    assert call("watch", run.path, "--seed", "3") == 0
    captured = capsys.readouterr()
    mp4, gif = captured.out.split()
    assert mp4 == str(run.path / "videos" / "best-seed3.mp4")
    assert gif == str(run.path / "videos" / "best-seed3.gif")
    assert "return: " in captured.err
    assert "<video controls" in (run.path / "report.html").read_text("utf-8")


@BROWSER
@pytest.mark.browser
def test_a_browser_plays_the_video_of_a_report(capsys, tmp_path):
    tiny = {"num_envs": 2, "num_steps": 8, "epochs": 1, "eval_episodes": 1, "backend": "in_process"}
    run = hundredfold.train("Acrobot-v1", save_dir=tmp_path, name="run", video_interval=1, eval_max_steps=30, **tiny)
    with open_chromium() as browser:
        for width in (390, 1280):
            opened = WatchedPage(browser, width)
            page = opened.open((run.path / "report.html").as_uri())
            page.wait_for_selector("html[data-charts=drawn]")
            seen = page.evaluate(PLAY_VIDEO)
            assert (seen["width"], seen["height"]) == (500, 500)
            assert seen["duration"] > 0
            assert seen["played"] > 0
            assert 0 < seen["shown"] <= width
            assert opened.overflow == 0
            assert opened.problems == []


def test_watching_an_env_without_a_policy_says_what_is_missing(capsys):
    assert call("watch", "CartPole-v1") == 2
    assert "--policy random" in capsys.readouterr().err
