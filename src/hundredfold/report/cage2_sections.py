"""Report sections of a cage2 run: the official score, where points are lost, episodes to replay."""

from __future__ import annotations

import plotly.graph_objects as go

from hundredfold.core.formatting import MINUS
from hundredfold.report.figures import COLOURS
from hundredfold.report.replay import Replay
from hundredfold.report.run_data import REPORT_DATA, ReportData, read_report_data
from hundredfold.report.run_sections import Card, Cell, Section, Table
from hundredfold.training.run_folder import RunFolder

CODE = {"leaderboard": "before August 2022", "current": "current"}
REDS = {"b_line": "red agent b_line", "meander": "red agent meander"}
Z_95 = 1.96  # half-width of a 95 % interval in standard errors


def cage2_sections(folder: RunFolder) -> list[Section]:
    """The sections that the run folder has data for."""
    data = read_report_data(folder)
    if data is None:
        missing = f"There is no {REPORT_DATA} in this run folder; `hundredfold report {folder.path}` makes it."
        return [Section("Score", missing)]
    return [_score(data), _losses(data), _replay(data)]


def _score(data: ReportData) -> Section:
    names = [f"{cell['red']} {cell['horizon']}" for cell in data["cells"] if cell["red"] != "sleep"]
    names.sort(key=lambda name: name.split()[0])
    own = {f"{cell['red']} {cell['horizon']}": cell for cell in data["cells"]}
    rows: list[list[Cell]] = [
        ["this run", *(_points(own[name]["mean"]) for name in names), _points(data["total"]), CODE[data["ruleset"]]]
    ]
    for agent in data["published"]:
        means = (_points(agent["means"][name]) for name in names)
        rows.append([agent["name"], *means, _points(agent["total"]), CODE[agent["ruleset"]]])
    errors = [own[name]["stderr"] for name in names]
    rows.insert(1, ["standard error", *map(_points, errors), _points(data["total_stderr"]), ""])
    sleeping = sum(cell["mean"] for cell in data["cells"] if cell["red"] == "sleep")
    return Section(
        "Score",
        f"Mean return over {data['episodes']} episodes of each red agent and length (in steps), deterministic policy, "
        "which is not told which red agent it faces: b_line knows the way to the operational server and takes it, "
        "meander takes every host it finds, subnet by subnet. The total also has the three cells of the sleeping red "
        f"agent ({_points(sleeping)}). Published agents were scored on the original simulator; code: the version "
        "of its rules, before and after two fixes of August 2022.",
        [Table(columns=["agent", *names, "total", "code"], rows=rows, marked=0)],
        card=_verdict(data),
    )


def _verdict(data: ReportData) -> Card:
    """The total beside the best published agents: on the same rules, and on any."""
    total, margin = data["total"], Z_95 * (data["total_stderr"] or 0.0)
    same_rules = [agent for agent in data["published"] if agent["ruleset"] == data["ruleset"]]
    best = [
        max(agents, key=lambda agent: float(agent["total"])) for agents in (same_rules, data["published"]) if agents
    ]
    compared = [_compared(total, margin, agent) for place, agent in enumerate(best) if agent not in best[:place]]
    sentence = f"{compared[0][0].upper()}{compared[0][1:]}." if compared else "No published agent has these rules."
    details = [
        f"How sure: {data['episodes']} episodes of each cell; 95 % interval {_points(total - margin)} to "
        f"{_points(total + margin)}.",
        "The total adds the mean returns of three red agents, each in episodes of 30, 50 and 100 steps. Points are "
        "lost, so 0 is the best possible.",
        *(f"The best published agent on any code: {text}." for text in compared[1:]),
    ]
    return Card("total score of the nine cells", _points(total), sentence, wide=True, details=details)


def _compared(total: float, margin: float, agent: ReportData) -> str:
    difference = total - agent["total"]
    name = f"{agent['name'].partition(',')[0]} ({_points(agent['total'])}, code: {CODE[agent['ruleset']]})"
    if abs(difference) <= margin:
        return f"no clear difference from {name}"
    return f"{abs(difference):.1f} points {'better' if difference > 0 else 'worse'} than {name}"


def _losses(data: ReportData) -> Section:
    contents: list[go.Figure | Table] = [
        _loss_bars(data, red, title) for red, title in REDS.items() if red in data["lost"]
    ]
    for red, rows in data["actions"].items():
        lines: list[list[Cell]] = [
            [row["action"], row["uses"], row["own_cost"], row["lost_to_red"]] for row in rows if row["uses"] >= 0.005
        ]
        columns = ["blue's action", "uses", "its own cost", "lost to red meanwhile"]
        contents.append(Table(columns=columns, rows=lines, title=f"By action, {REDS[red]}"))
    return Section(
        "Where points are lost",
        "Points per episode of 100 steps: a host that red holds with privileged access costs its value in every step, "
        "a stopped OT service 10, and each Restore 1. By action: the points of Restores, and what red cost in the "
        "steps in which blue chose that action.",
        contents,
        columns=2,
    )


def _loss_bars(data: ReportData, red: str, title: str) -> go.Figure:
    lost = data["lost"][red]
    hosts = [host for host, values in enumerate(lost) if sum(values) >= 0.005]
    hosts.sort(key=lambda host: sum(lost[host]))
    figure = go.Figure()
    for cause, name in enumerate(data["causes"]):
        values = [lost[host][cause] for host in hosts]
        if any(values):
            figure.add_bar(
                x=values,
                y=[data["hosts"][host] for host in hosts],
                name=name,
                orientation="h",
                marker={"color": COLOURS[cause]},
                hovertemplate="%{y}, " + name + ": %{x:.2f} points<extra></extra>",
            )
    total = sum(sum(values) for values in lost)
    figure.update_layout(
        title={"text": f"By host, {title}", "subtitle": {"text": f"{total:.1f} points per episode"}},
        barmode="stack",
        height=34 * max(len(hosts), 3) + 110,
        showlegend=True,
    )
    figure.update_xaxes(title_text="points lost per episode")
    return figure


def _replay(data: ReportData) -> Section:
    reds = " and ".join(
        f"{number}: {episode[0]['red']}" for number, episode in enumerate(data["replay"]["episodes"], 1)
    )
    return Section(
        "One episode to replay",
        f"The episode with the median return of each red agent ({reds}). Keys work while the replay has the focus. "
        "`hundredfold watch` replays other seeds and sets two policies side by side.",
        [Replay("cage2", data["replay"], unit="step")],
    )


def _points(value: float | None) -> str:
    """Points with two decimals; a proper minus sign."""
    if value is None:
        return ""
    return f"{value:.2f}".replace("-", MINUS) if abs(value) >= 0.005 else "0"
