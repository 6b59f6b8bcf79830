"""Report sections of a dvrp run: savings, baselines, a median day, offers and beliefs.

Curves come from the run's metrics, everything else from `report_data.json` in the run folder,
which is written once after the days were simulated; reading it needs neither env nor policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hundredfold.core.errors import CheckpointError
from hundredfold.core.files import read_sealed_json, sealed_json, write_atomically
from hundredfold.core.formatting import MINUS, format_count, format_number, format_percent
from hundredfold.report.dvrp_day import route_map, window_chart
from hundredfold.report.dvrp_figures import (
    acceptance_maps,
    accuracy_curve,
    calibration_by_day,
    calibration_curve,
    calibration_groups,
    confusion_map,
    offer_maps,
    policy_bars,
    split_bars,
    trade_off,
)
from hundredfold.report.figures import Measure, small_multiple
from hundredfold.report.run_data import RunRecord, read_record
from hundredfold.report.run_sections import Card, Cell, Section, Table
from hundredfold.training.run_folder import RunFolder

ReportData = dict[str, Any]

FILE_NAME = "report_data.json"
# Version of the file; raised when older readers could no longer read it.
FORMAT = 1
COLUMNS = (
    "policy",
    "days of",
    "saved",
    "95 % interval",
    "driving min",
    "offers",
    "accepted",
    "shift min",
    "vehicles",
    "failed days",
)
LOOKAHEAD = "lookahead"
# Fewer days are not enough to compare policies.
MIN_DAYS = 8
IMPROVEMENT = Measure("avg_improvement_pct", "", "% of driving minutes saved")


def dvrp_sections(folder: RunFolder) -> list[Section]:
    """The sections that the run folder has data for."""
    record = read_record(folder)
    sections = _improvement(record)
    report_data = read_report_data(folder)
    if report_data is None:
        missing = (
            f"There is no {FILE_NAME} in this run folder, so routes, baselines and offers are not "
            f"drawn; `hundredfold report {folder.path} --days 8` simulates 8 days and draws them."
        )
        return [*sections, Section("Days and routes", missing)]
    return [*sections, *_policies(report_data), _day(report_data), _offers(report_data), *_beliefs(report_data, record)]


def report_data_file(folder: RunFolder) -> Path:
    return folder.path / FILE_NAME


def write_report_data(folder: RunFolder, report_data: ReportData | None) -> Path:
    """Write report data into the run folder, replacing older data (None: with nothing); returns the path."""
    path = report_data_file(folder)
    try:
        if report_data is None:
            path.unlink(missing_ok=True)
            return path
        write_atomically(path, sealed_json(report_data, indent=None))
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}. The run itself is safe; free some space, then "
            "run `hundredfold report` again."
        ) from error
    return path


def read_report_data(folder: RunFolder) -> ReportData | None:
    """The report data of a run; None if there are none."""
    path = report_data_file(folder)
    try:
        found = read_sealed_json(path, required=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged ({error}); delete the file and run `hundredfold report` again."
        ) from error
    if found.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has format {found.get('format')}, this version reads format {FORMAT}; delete the file and "
            "run `hundredfold report` again."
        )
    return found


def _improvement(record: RunRecord) -> list[Section]:
    if IMPROVEMENT.key not in record.keys:
        return []
    figure = small_multiple(record, IMPROVEMENT)
    figure.update_layout(height=320, showlegend=True, hovermode="x unified")
    figure.update_traces(mode="lines+markers", selector={"name": "evaluated"})
    explanation = (
        "Driving minutes saved by negotiating, in percent of the same day without offers: mean of "
        "the days that ended in an epoch, and of evaluation days, which are always the same."
    )
    return [Section("Improvement", explanation, [figure])]


def _policies(report_data: ReportData) -> list[Section]:
    rows = report_data["policies"]
    same_days = [row for row in rows if row["split"] == "known"]
    this_run = [row for row in rows if row["policy"] == rows[0]["policy"]]
    days = format_count(report_data["days"], "day")
    table = Table(title="All numbers", columns=list(COLUMNS), rows=[_cells(row) for row in rows])
    comparison = Section(
        "Comparison with baselines",
        f"All policies play the same {days} of {report_data['num_customers']} calls, and one "
        "oracle solves all final bookings, so no policy profits from the solver used while "
        "booking. Belief-based policies use this run's acceptance model. Numbers are daily means."
        f"{_days_note(report_data)}",
        [policy_bars(same_days), table],
        columns=2,
        card=verdict(report_data),
    )
    if len(this_run) == 1:
        return [comparison, _trade_off(report_data, same_days)]
    return [
        comparison,
        _trade_off(report_data, same_days),
        Section(
            "Unseen trips and customers",
            "Driving minutes this run saves, in percent with 95 % intervals, on trips and "
            "customers held out from training.",
            [split_bars(this_run)],
        ),
    ]


def verdict(report_data: ReportData) -> Card:
    """What the run saved and moved, how sure that is, and whether a heuristic does better."""
    run = report_data["policies"][0]
    saved, baseline = run["baseline_cost"] - run["cost"], run["baseline_cost"]
    moved = run["shift_minutes"]
    text = (
        f"This run saves {format_number(round(saved, 1))} of {format_number(round(baseline))} driving minutes a day "
        f"(95 % interval {fixed(run['ci_low'], 1)} to {fixed(run['ci_high'], 1)} %, "
        f"{format_count(report_data['days'], 'simulated day')}) and moves customers by {moved:,.0f} minutes a day, "
        f"{moved / report_data['num_customers']:.0f} per customer"
    )
    if run["failed"]:
        text += f"; {format_count(run['failed'], 'day')} with an unserved customer counted as {MINUS}100 %"
    # Absent from data of earlier versions.
    if "equal_shift" in report_data:
        text += f"; {_heuristics_note(report_data)}"
    return Card("driving minutes saved", f"{fixed(run['mean'], 1)} %", f"{text}.", wide=True)


def _heuristics_note(report_data: ReportData) -> str:
    """Whether one of the heuristics, which need no training, does better than the run."""
    rows = report_data["equal_shift"]
    names = {row["policy"] for row in rows}
    missing = ""
    if LOOKAHEAD not in names:
        reason = "there was no time for it" if LOOKAHEAD in report_data["left_out"] else "it needs an acceptance model"
        missing = f" ({LOOKAHEAD} was left out, as {reason})"
    if not rows:
        return f"it was compared with no heuristic{missing}"
    if report_data["days"] < MIN_DAYS:
        return f"so few days do not tell whether a heuristic that needs no training does better{missing}"
    better = [row for row in rows if row["ci_low"] > 0]
    best = max(better or rows, key=lambda row: float(row["mean"]))
    low, high = fixed(best["ci_low"], 1), fixed(best["ci_high"], 1)
    moved = "at equal minutes moved"
    if best["shift_minutes"] > best["baseline_shift_minutes"]:
        moved = f"while moving customers by {best['shift_minutes']:,.0f} minutes a day"
    more = "more" if best["mean"] >= 0 else "less"
    difference = (
        f"the best of them, {best['policy']}, saves {abs(best['mean']):.1f} minutes a day {more} {moved} (95 % "
        f"interval of the difference {low} to {high})"
    )
    if better:
        return f"heuristics that need no training do better on the same days: {difference}{missing}"
    clearly = "" if best["ci_high"] < 0 else "clearly "
    return f"no heuristic that needs no training does {clearly}better on the same days: {difference}{missing}"


def _trade_off(report_data: ReportData, same_days: list[dict[str, Any]]) -> Section:
    curve = report_data["trade_off"]
    # Privileged policies cannot be chosen; of them hindsight stays, as the upper bound.
    shown = [row for row in same_days if not row["policy"].startswith("privileged")]
    explanation = (
        "Driving minutes saved against the minutes by which pickups and dropoffs of all customers are moved: means of "
        f"the same {format_count(report_data['days'], 'day')}, scored by one oracle. High up and far to the left is "
        "best. "
    )
    if len(curve) > 1:
        explanation += (
            "The line is this run at several shift penalties (driving minutes charged per minute moved). To choose "
            "one, without training again: `hundredfold evaluate RUN --shift-penalty 0.05`."
        )
    else:
        explanation += (
            "This run is a dot, as its policy has learned one shift penalty; train with `--observation offers` for a "
            "policy whose penalty is chosen afterwards with `hundredfold evaluate RUN --shift-penalty 0.05`."
        )
    return Section("Minutes saved against minutes moved", explanation, [trade_off(shown, curve)])


def _days_note(report_data: ReportData) -> str:
    """A sentence if fewer days or policies were simulated than planned."""
    planned, left_out = report_data.get("planned_days", 0), report_data.get("left_out", [])
    if planned <= report_data["days"] and not left_out:
        return ""
    without = f" Left out: {', '.join(left_out)}." if left_out else ""
    return (
        f" More days would have taken too long at the end of the training.{without} `hundredfold report RUN --days "
        f"{max(planned, report_data['days'])}` simulates all of them."
    )


def _cells(row: dict[str, Any]) -> list[Cell]:
    return [
        row["policy"],
        row["split"].replace("_", " "),
        f"{fixed(row['mean'])} %",
        f"{fixed(row['ci_low'])} to {fixed(row['ci_high'])}",
        *(round(row[key], 1) for key in ("cost", "offers_made", "offers_accepted")),
        *(round(row[key], 1) for key in ("shift_minutes", "vehicles")),
        row["failed"],
    ]


def _day(report_data: ReportData) -> Section:
    day = report_data["day"]
    if day is None:
        return Section("Median day", "No day served every customer, so none is drawn.")
    low, high = day["quartiles_pct"]
    before, after = day["before"], day["after"]
    calls = day["calls"]
    offered = [call for call in calls if call["response"] != "no offer"]
    accepted = [call for call in offered if call["response"] == "accepted"]
    explanation = (
        f"The day with the median improvement of {format_count(report_data['days'], 'day')}: "
        f"{fixed(day['improvement_pct'], 1)} % saved (half of all days lie between "
        f"{fixed(low, 1)} and {fixed(high, 1)} %). {len(offered)} of {len(calls)} customers got an "
        f"offer, {len(accepted)} accepted."
    )
    return Section(
        "Median day",
        explanation,
        [
            route_map(day, before, "Routes as requested"),
            route_map(day, after, "Routes after negotiation", compare=before),
            window_chart(day),
        ],
        columns=2,
    )


def _offers(report_data: ReportData) -> Section:
    by_type, by_purpose = (report_data["responses"]["by_type"], report_data["responses"]["by_purpose"])
    types, purposes, offers = report_data["types"], report_data["purposes"], report_data["offers"]
    return Section(
        "Offers and acceptance",
        "Each square is one of the sixteen offers: minutes of earlier pickup upwards, minutes of "
        "later dropoff to the right; the lower left one changes nothing. Type late tolerates later "
        "dropoffs, early tolerates earlier pickups, both tolerates either, none neither.",
        [
            offer_maps("Offers by type", types, by_type, offers, columns=2),
            acceptance_maps("Acceptance by type", types, by_type, offers, columns=2),
            offer_maps("Offers by purpose", purposes, by_purpose, offers, columns=3),
            acceptance_maps("Acceptance by purpose", purposes, by_purpose, offers, columns=3),
        ],
        columns=2,
    )


def _beliefs(report_data: ReportData, record: RunRecord) -> list[Section]:
    found: dict[str, Any] | None = report_data["beliefs"]
    if found is None:
        return []
    explanation = (
        f"The acceptance model's beliefs about {format_number(found['customers'])} customers "
        f"after {format_number(found['responses_per_customer'])} responses from each (median): its "
        f"most likely type is right for {format_percent(found['accuracy'])} of them."
    )
    figures = [confusion_map(report_data["types"], found["confusion"]), calibration_curve(found["calibration"])]
    if found["by_responses"]["responses"]:
        figures.append(accuracy_curve(found["by_responses"]))
    epochs = [row for row in record.epochs if row.get("acceptance/predicted_rate") is not None]
    if epochs:
        figures.append(calibration_by_day(epochs, 1.0 / report_data["num_customers"]))
    # Absent from data of earlier versions.
    if found.get("by_group"):
        figures.append(calibration_groups(found["by_group"]))
    return [Section("Acceptance model", explanation, figures, columns=2)]


def fixed(value: float, digits: int = 2) -> str:
    """A number with a fixed number of decimals, for a column."""
    return f"{value:.{digits}f}".replace("-", MINUS)
