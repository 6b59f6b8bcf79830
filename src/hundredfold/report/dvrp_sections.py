"""Report sections of a dvrp run: savings, baselines, a median day, offers and beliefs.

Curves come from the run's metrics, everything else from `report_data.json` in the run folder,
which is written once after the days were simulated; reading it needs neither env nor policy.
"""

from __future__ import annotations

from typing import Any

from hundredfold.core.formatting import MINUS, format_count, format_number, format_percent
from hundredfold.report.dvrp_day import route_map, timetable, vehicle_timeline, window_chart
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
from hundredfold.report.figures import small_multiple
from hundredfold.report.measures import Measure
from hundredfold.report.run_data import REPORT_DATA, ReportData, RunRecord, read_record, read_report_data
from hundredfold.report.run_sections import Card, Cell, Section, Table
from hundredfold.training.run_folder import RunFolder

COLUMNS = (
    "policy",
    "customers",
    "saved (%)",
    "95 % interval (%)",
    "driving (min)",
    "offers",
    "accepted",
    "moved (min)",
    "vehicles",
    "failed days",
)
# On whose requests a policy was evaluated.
SPLITS = {"known": "known", "unseen_trips": "known, new trips", "unseen_customers": "new"}
SPLIT_TEXTS = {
    "known": "known customers and trips",
    "unseen_trips": "new trips of known customers",
    "unseen_customers": "customers it has never met",
}
STOP_COLUMNS = ("vehicle", "stop", "time", "what", "customer", "place", "customers on board")
# What each policy does, for readers who do not know its name.
DESCRIPTIONS = {
    "none": "Offers nothing: every trip is booked as requested. The reference for all savings.",
    "random": "Makes one of the possible offers at random to every customer.",
    "always_largest": "Always asks for the largest change of times.",
    "greedy_optimistic": "Makes the offer that would shorten the present routes most, as if everybody accepted.",
    "greedy_expected": "Makes the offer that shortens the present routes most, given how often customers accept it.",
    "belief_greedy": "Makes the offer that shortens the present routes most, given how likely this customer accepts.",
    "belief_largest": "Asks for the largest change that this customer will probably accept.",
    "thompson": "Draws a type for the customer from what is known, and asks for the largest change that type accepts.",
    "lookahead": (
        "Tries every offer on 16 sampled futures of the day, and makes the one that saves most on average. Needs no "
        "training, but the most time per call."
    ),
    "privileged_greedy": "Knows in advance which offers are accepted; not possible in practice.",
    "privileged_largest": "Knows how far each customer may be moved, and asks for it; not possible in practice.",
    "hindsight": "Knows all calls of the day and all responses in advance: an upper bound, not a policy.",
    "fully_flexible": "Hindsight with customers who accept everything: what flexibility is worth at most.",
    "upper_bound": "A proven bound that no offers whatsoever exceed.",
}
# What the return of a day consists of, by the setting `reward`.
RETURNS = {
    "marginal": "driving minutes saved against the same day without offers",
    "counterfactual": "driving minutes saved against booking each request unchanged",
    "step": "minus its driving minutes",
    "percent": "the percentage saved, summed over its calls",
}
LOOKAHEAD = "lookahead"
# A heuristic that moves customers by less than this share of the run's minutes is another kind of service.
GENTLE = 0.5
# Fewer days are not enough to compare policies, nor for an interval.
MIN_DAYS = 8
USUAL_DAYS = 64
IMPROVEMENT = Measure("avg_improvement_pct", "", "% of driving minutes saved")


def dvrp_sections(folder: RunFolder) -> list[Section]:
    """The sections that the run folder has data for."""
    record = read_record(folder)
    sections = _improvement(record)
    report_data = read_report_data(folder)
    if report_data is None:
        missing = (
            f"There is no {REPORT_DATA} in this run folder, so routes, baselines and offers are not "
            f"drawn; `hundredfold report {folder.path} --days 8` simulates 8 days and draws them."
        )
        return [*sections, Section("Days and routes", missing)]
    return [
        *_policies(report_data),
        *_data(report_data),
        *_day(report_data),
        _offers(report_data),
        *_beliefs(report_data, record),
        *sections,
    ]


def _improvement(record: RunRecord) -> list[Section]:
    if IMPROVEMENT.key not in record.keys:
        return []
    figure = small_multiple(record, IMPROVEMENT)
    figure.update_layout(height=320, showlegend=True, hovermode="x unified")
    figure.update_traces(mode="lines+markers", selector={"name": "evaluated"})
    explanation = (
        "Driving minutes saved by offers, in percent of the same day without offers: mean of the days of each epoch of "
        "training, and of evaluation days, which are always the same. Training maximises the return of a day: "
        f"{RETURNS.get(record.settings.get('env_settings', {}).get('reward', ''), 'the sum of its rewards')}, minus a "
        "penalty for every minute by which customers are moved (`--shift-penalty`)."
    )
    return [Section("Savings during training", explanation, [figure])]


def _policies(report_data: ReportData) -> list[Section]:
    rows = report_data["policies"]
    same_days = [row for row in rows if row["split"] == "known"]
    this_run = [row for row in rows if row["policy"] == rows[0]["policy"]]
    days = format_count(report_data["days"], "day")
    table = Table(title="All numbers, per day", columns=list(COLUMNS), rows=[_cells(row) for row in rows])
    comparison = Section(
        "Comparison with simple rules and bounds",
        f"Every policy books the same {days} of {report_data['num_customers']} calls. At the end of each day one route "
        "planner plans all bookings anew, the same for all policies. Policies that use what is known about a customer "
        "share this run's acceptance model. All numbers are means per day: driving minutes of the whole fleet, and "
        f"minutes by which pickups and dropoffs of all customers were moved.{_days_note(report_data)}",
        [policy_bars(same_days), _glossary(rows, report_data.get("left_out", [])), table],
        columns=2,
        card=verdict(report_data),
    )
    if len(this_run) == 1:
        return [comparison, _trade_off(report_data, same_days)]
    return [
        comparison,
        _trade_off(report_data, same_days),
        Section(
            "New trips and new customers",
            f"Driving minutes this run saves, in percent with 95 % intervals: {_split_texts(this_run)}.",
            [split_bars(this_run)],
        ),
    ]


def _split_texts(rows: list[dict[str, Any]]) -> str:
    """The splits of these rows in words; own trips of which a customer has only one give no new trips."""
    texts = [SPLIT_TEXTS.get(row["split"], row["split"]) for row in rows]
    return f"on {', on '.join(texts[:-1])} and on {texts[-1]}"


def _glossary(rows: list[dict[str, Any]], left_out: list[str]) -> Table:
    """What the policies of these rows do, and those that were left out."""
    names = dict.fromkeys([*(row["policy"] for row in rows), *left_out])
    texts: list[list[Cell]] = [
        [name, DESCRIPTIONS.get(name, "The trained policy of this run." if name == rows[0]["policy"] else "")]
        for name in names
    ]
    return Table(title="What the policies do", columns=["policy", "what it does"], rows=texts)


def verdict(report_data: ReportData) -> Card:
    """What the run saved, how sure that is, and whether a heuristic does better: a sentence, then the details."""
    run = report_data["policies"][0]
    saved, moved = run["baseline_cost"] - run["cost"], run["shift_minutes"]
    days = format_count(report_data["days"], "simulated day")
    sure = f"{days}; 95 % interval {fixed(run['ci_low'], 1)} to {fixed(run['ci_high'], 1)} %"
    if report_data["days"] < MIN_DAYS:
        planned = max(report_data.get("planned_days", 0), USUAL_DAYS)
        sure = f"not sure, {days} can be very different from most; `hundredfold report RUN --days {planned}` plays more"
    details = [
        f"How sure: {sure}.",
        f"What it costs: times of customers are moved by {moved:,.0f} minutes a day, "
        f"{moved / report_data['num_customers']:.0f} minutes per customer.",
    ]
    sentence = _savings(saved, run)
    # Absent from data of earlier versions.
    if "equal_shift" in report_data:
        compared, more = _heuristics(report_data)
        sentence += compared
        details += more
    if run["failed"]:
        unserved = format_count(run["failed"], "day")
        details.append(f"{unserved} with a customer who was not served: such a day counts as {MINUS}100 %.")
    return Card("driving minutes saved", f"{fixed(run['mean'], 1)} %", f"{sentence}.", wide=True, details=details)


def _savings(saved: float, run: dict[str, Any]) -> str:
    """The beginning of the verdict: driving minutes a day, and whether they could be chance."""
    minutes = f"{format_number(round(abs(saved), 1))} of {format_number(round(run['baseline_cost']))} driving minutes"
    if saved < 0:
        minutes = f"{format_number(round(-saved, 1))} driving minutes to {format_number(round(run['baseline_cost']))}"
    text = f"The offers of this run {'save' if saved >= 0 else 'add'} {minutes} a day"
    return f"{text}, which may be chance" if run["ci_low"] <= 0 <= run["ci_high"] else text


def _heuristics(report_data: ReportData) -> tuple[str, list[str]]:
    """Whether one of the heuristics, which need no training, does better than the run: in short, and the figures."""
    rows = report_data["equal_shift"]
    missing = []
    if LOOKAHEAD not in {row["policy"] for row in rows}:
        reason = "there was no time for it" if LOOKAHEAD in report_data["left_out"] else "it needs an acceptance model"
        missing = [f"Not compared: the heuristic {LOOKAHEAD}; {reason}."]
    if not rows:
        return "; it was compared with no heuristic", missing
    if report_data["days"] < MIN_DAYS:
        return "; so few days do not tell whether a heuristic that needs no training does better", missing
    better = [row for row in rows if row["ci_low"] > 0]
    best = max(better or rows, key=lambda row: float(row["mean"]))
    as_gentle = best["shift_minutes"] <= best["baseline_shift_minutes"]
    moved = (
        "When both move customers equally" if as_gentle else f"Moving customers by {best['shift_minutes']:,.0f} minutes"
    )
    # Gentle policies save little: the run would have to be set to save as little.
    is_gentle = best["shift_minutes"] < GENTLE * report_data["policies"][0]["shift_minutes"]
    if is_gentle:
        minutes = format_number(round(best["saved_minutes"], 1))
        only = f"It moves customers by only {best['shift_minutes']:,.0f} minutes a day, and saves {minutes}"
        moved = f"{only}. Moving them as little"
    figures = (
        f"Best heuristic on the same days: {best['policy']}. {moved}, it saves {abs(best['mean']):.1f} minutes a day "
        f"{'more' if best['mean'] >= 0 else 'less'} than this run (95 % interval of the difference: "
        f"{fixed(best['ci_low'], 1)} to {fixed(best['ci_high'], 1)} minutes)."
    )
    if better:
        equally = " when both move customers equally" if as_gentle else ""
        if is_gentle:
            equally = f", but only if customers are moved by no more than {best['shift_minutes']:,.0f} minutes a day"
        short = f"; the heuristic {best['policy']}, which needs no training, does better{equally}"
    else:
        short = f"; no heuristic that needs no training does {'' if best['ci_high'] < 0 else 'clearly '}better"
    return short, [figures, *missing]


def _data(report_data: ReportData) -> list[Section]:
    """What was assumed where the operator's own files say nothing; nothing for a synthetic city."""
    notes = report_data.get("data_notes", [])
    if not notes:
        return []
    table = Table(title="Assumptions", columns=["assumption"], rows=[[note] for note in notes])
    explanation = "These trips are your own. Where your files say nothing the simulation assumes the following."
    return [Section("Your data", explanation, [table])]


def _trade_off(report_data: ReportData, same_days: list[dict[str, Any]]) -> Section:
    curve = report_data["trade_off"]
    # Privileged policies cannot be chosen; of them hindsight stays, as the upper bound.
    shown = [row for row in same_days if not row["policy"].startswith("privileged")]
    explanation = (
        "Driving minutes saved against the minutes by which pickups and dropoffs of all customers are moved: means of "
        f"the same {format_count(report_data['days'], 'day')}. High up and far to the left is best. "
    )
    if len(curve) > 1:
        explanation += (
            "The line is this run at several shift penalties (driving minutes charged per minute moved). To choose "
            "one, without training again: `hundredfold evaluate RUN --shift-penalty 0.05`, where RUN is the folder of "
            "this page."
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
        f"{max(planned, report_data['days'])}` simulates all of them (RUN is the folder of this page)."
    )


def _cells(row: dict[str, Any]) -> list[Cell]:
    return [
        row["policy"],
        SPLITS.get(row["split"], row["split"]),
        fixed(row["mean"]),
        f"{fixed(row['ci_low'])} to {fixed(row['ci_high'])}",
        *(round(row[key], 1) for key in ("cost", "offers_made", "offers_accepted")),
        *(round(row[key], 1) for key in ("shift_minutes", "vehicles")),
        row["failed"],
    ]


def _day(report_data: ReportData) -> list[Section]:
    day = report_data["day"]
    if day is None:
        return [Section("A typical day", "No day served every customer, so none is drawn.")]
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
    maps = [
        route_map(day, before, "Routes as requested"),
        route_map(day, after, "Routes with the offers that were accepted", compare=before),
    ]
    times = [
        vehicle_timeline(day, before, "Vehicles as requested"),
        vehicle_timeline(day, after, "Vehicles with the offers that were accepted"),
        window_chart(day),
    ]
    stops = Table(columns=list(STOP_COLUMNS), rows=timetable(day, after))
    return [
        Section("A typical day", explanation, maps, columns=2),
        Section("The same day by time", "When every vehicle stops where, and when every customer travels.", times),
        Section("Timetable of that day", "Every stop, with the offers that were accepted.", [stops], folded=True),
    ]


def _offers(report_data: ReportData) -> Section:
    by_type, by_purpose = (report_data["responses"]["by_type"], report_data["responses"]["by_purpose"])
    types, purposes, offers = report_data["types"], report_data["purposes"], report_data["offers"]
    unchanged = "the lower left one"
    if any(min(offer) < 0 for offer in offers):
        unchanged = "negative minutes move the stop the other way, and the one at 0, 0"
    return Section(
        "Offers and acceptance",
        f"Each square is one of the {len(offers)} offers: pickup so many minutes earlier (upwards), dropoff so many "
        f"minutes later (to the right); {unchanged} changes nothing. By type, customers accept later dropoffs (late), "
        "earlier pickups (early), either (both) or neither (none).",
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
        f"What the run has learned about {format_number(found['customers'])} customers from their responses, "
        f"{format_number(found['responses_per_customer'])} from each (median): the type it finds most likely is right "
        f"for {format_percent(found['accuracy'], 0)} of them."
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
    return [Section("What is known about customers", explanation, figures, columns=2)]


def fixed(value: float, digits: int = 2) -> str:
    """A number with a fixed number of decimals, for a column."""
    return f"{value:.{digits}f}".replace("-", MINUS)
