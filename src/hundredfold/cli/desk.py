"""`hundredfold serve` and `hundredfold quote`: the booking desk as a server, or for one question."""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import tyro
from annotated_types import Interval

from hundredfold.cli.flags import parse_flags
from hundredfold.cli.output import print_text
from hundredfold.core.bounds import AtLeastOne, NonNegative, check_bounds
from hundredfold.core.errors import HundredfoldError, MissingExtraError, SettingsError, is_installed, suggest
from hundredfold.core.formatting import format_percent, printable
from hundredfold.desk.security import LOCAL_NAMES, GuardSettings
from hundredfold.desk.settings import DeskSettings, with_service
from hundredfold.envs.dvrp.csv_files import CsvTable, Problems, read_table
from hundredfold.envs.dvrp.offers import OfferDirections
from hundredfold.envs.dvrp.policies import POLICIES, PRIVILEGED_POLICIES
from hundredfold.envs.dvrp.settings import DvrpSettings, Service
from hundredfold.envs.dvrp.trip_rows import clock_minutes

if TYPE_CHECKING:
    from hundredfold.desk.models import Quote, TripIn
    from hundredfold.desk.quoter import DeskPolicy
    from hundredfold.desk.service import Desk

# The best policy without training that answers within milliseconds; lookahead saves more and takes ten times as long.
DEFAULT_POLICY: Final = "belief_greedy"
MIN_TOKEN_LENGTH: Final = 16
# Places that an error about an unknown one lists.
SHOWN_PLACES: Final = 8
# Settings that a trained policy depends on.
OWN_SETTINGS: Final = (
    *("num_customers", "trips", "travel_times", "speed_kmh", "detour_factor"),
    *("offer_minutes", "offer_directions"),
)
PACKAGES: Final = ("fastapi", "uvicorn", "sqlalchemy", "alembic", "prometheus_client")


def require_serve_extra() -> None:
    """Raise a MissingExtraError if a package of the extra `serve` is missing."""
    for package in PACKAGES:
        if not is_installed(package):
            raise MissingExtraError(package, "serve", "the booking desk")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskOptions:
    """Policy, city and fleet of the desk."""

    run: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """Run folder of dvrp whose policy decides; without one, --policy."""
    policy: str = DEFAULT_POLICY
    """Policy without training: belief_greedy, belief_largest, lookahead (saves more, ten times slower),
    greedy_expected or none."""
    checkpoint: str = "best"
    """Checkpoint of the run: best, last or an epoch."""
    trips: str | None = None
    """CSV file of known trips, for a city of your own."""
    travel_times: str | None = None
    """CSV file of travel times between the places of your trips; by default from their coordinates."""
    speed_kmh: float | None = None
    """Speed on the road in km/h, for your trips without travel times; by default 30."""
    detour_factor: float | None = None
    """Length of the road relative to the straight line, for your trips without travel times; by default 1.3."""
    depot: str | None = None
    """Place of the depot, as named in your files; by default the most central place."""
    service: Service = "operator"
    """Defaults of limits: operator (ride-time limit, shifts of at most 60 minutes) or research."""
    customers: AtLeastOne | None = None
    """Requests expected in a day; by default 30, or those of the run."""
    num_vehicles: AtLeastOne | None = None
    """Vehicles in the fleet; by default 5, or one per 8 customers if that is more."""
    capacity: AtLeastOne | None = None
    """Seats of one vehicle; by default 8."""
    shift_penalty: NonNegative | None = None
    """Driving minutes charged per minute of shift when deciding; research 0.002, operator 0.05."""
    vehicle_cost: NonNegative | None = None
    """Driving minutes that the use of one more vehicle is worth; by default 0."""
    offer_minutes: tuple[int, ...] | None = None
    """Minutes by which offers shift a window, ascending from 0; by default 0,10,20,30."""
    offer_directions: OfferDirections | None = None
    """outward (pickups earlier, dropoffs later; default) or both (also both stops the same way)."""


def desk_policy(options: DeskOptions) -> DeskPolicy:
    """The policy that the options name, with the settings of its env."""
    from hundredfold.desk.quoter import DeskPolicy

    fleet: dict[str, Any] = {
        "num_vehicles": options.num_vehicles,
        "num_customers": options.customers,
        "capacity": options.capacity,
        "shift_penalty": options.shift_penalty,
        "vehicle_cost": options.vehicle_cost,
        "offer_minutes": options.offer_minutes,
        "offer_directions": options.offer_directions,
        "trips": options.trips,
        "travel_times": options.travel_times,
        "speed_kmh": options.speed_kmh,
        "detour_factor": options.detour_factor,
        "depot": options.depot,
    }
    given = {name: value for name, value in fleet.items() if value is not None}
    if options.run is not None:
        own = [name for name in OWN_SETTINGS if name in given]
        if own:
            flags = ", ".join(f"--{name.removeprefix('num_').replace('_', '-')}" for name in own)
            raise SettingsError(f"{flags} cannot be combined with RUN, whose policy was trained with its own.")
        # Imports torch, which a desk without a run starts faster without.
        import torch

        from hundredfold.algorithms.policies import BatchActor
        from hundredfold.cli.evaluate_dvrp_policies import load_run_policy

        torch.set_num_threads(1)  # more threads are slower for single requests
        loaded = load_run_policy(options.run, options.checkpoint)
        assert not isinstance(loaded.policy, str)
        if isinstance(loaded.policy, BatchActor) and loaded.policy.memory_size:
            raise SettingsError(
                f"{options.run} was trained with --memory gru, so it remembers every request that it is asked about; "
                "but the desk prices requests again and undoes bookings. Use a policy without memory."
            )
        return DeskPolicy(
            name=Path(options.run).name,
            settings=replace(loaded.settings, **given),
            act=loaded.policy,
            beliefs=loaded.acceptance_model,
        )
    known = [name for name in POLICIES if name not in PRIVILEGED_POLICIES]
    if options.policy not in known:
        raise SettingsError(f"the desk has no policy {options.policy!r}; it has {', '.join(known)}.")
    return DeskPolicy(name=options.policy, settings=DvrpSettings(service=options.service, **given))


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve(DeskOptions):
    """Serve the booking desk: an HTTP API that quotes, books and routes trips, and its page."""

    database_url: str = "sqlite:///desk.db"
    """Where bookings are stored: sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/NAME."""
    host: str = "127.0.0.1"
    """Address to listen on; any but loopback needs --token-file."""
    port: Annotated[int, Interval(ge=0, le=65535)] = 8300
    """Port to listen on; 0 for a free one."""
    token_file: Path | None = None
    """File with the secret that clients send as `Authorization: Bearer ...`."""
    tile_url: str | None = None
    """URL template of map tiles for the page, such as https://tiles.example.org/{z}/{x}/{y}.png."""
    proxy_headers: bool = False
    """Trust X-Forwarded-For and X-Forwarded-Proto of a proxy on this machine, for the rate limit."""
    quiet: bool = False
    """Log no requests."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class ServeArguments:
    """Serve the booking desk: an HTTP API that quotes, books and routes trips, and its page."""

    server: Serve = field(default_factory=Serve)
    desk: DeskSettings = field(default_factory=DeskSettings)
    guard: GuardSettings = field(default_factory=GuardSettings)


def run_serve(argv: Sequence[str]) -> int:
    """Serve until interrupted."""
    require_serve_extra()
    import uvicorn

    from hundredfold.desk.operations import JsonLog
    from hundredfold.desk.server import ServerOptions, create_app
    from hundredfold.desk.service import Desk
    from hundredfold.desk.storage import Journal

    parsed = parse_flags(ServeArguments, argv, "hundredfold serve", config=(tyro.conf.OmitArgPrefixes,))
    args, settings = parsed.server, parsed.desk
    token = None if args.token_file is None else read_token(args.token_file)
    if token is None and args.host not in LOCAL_NAMES:
        raise SettingsError(
            f"--host {args.host} can be reached by others, so it needs --token-file; or listen on 127.0.0.1."
        )
    policy = desk_policy(args)
    listener = _listen(args.host, args.port)
    desk = Desk(policy, Journal(args.database_url), with_service(settings, policy.settings.service))
    desk.warm_up()
    log = JsonLog(None if args.quiet else sys.stderr)
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).addHandler(log)
        logging.getLogger(name).propagate = False
    options = ServerOptions(token=token, guard=parsed.guard, tile_url=args.tile_url, log=log)
    config = uvicorn.Config(
        create_app(desk, options),
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=args.proxy_headers,
        timeout_graceful_shutdown=10,
    )
    address = f"[{args.host}]" if ":" in args.host else args.host
    print(f"booking desk: http://{address}:{listener.getsockname()[1]}/", flush=True)
    # uvicorn finishes the requests it has, and then raises the signal that stopped it once more.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def read_token(path: Path) -> str:
    """The secret in a file: at least 16 characters without spaces, on one line."""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read the token from {path}: {error}.") from error
    if len(token) < MIN_TOKEN_LENGTH or len(token.split()) != 1 or not token.isascii():
        raise SettingsError(
            f"{path} must contain one word of at least {MIN_TOKEN_LENGTH} letters and digits; create it with: "
            f"python -c 'import secrets; print(secrets.token_urlsafe())' > {path}"
        )
    return token


def _listen(host: str, port: int) -> socket.socket:
    # asyncio turns Nagle's algorithm off, which would delay every answer by 40 ms, only for sockets that name TCP.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, proto=socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise HundredfoldError(f"cannot listen on {host}:{port}: {error}.") from error
    return listener


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteOptions(DeskOptions):
    """The request, and the day it is for."""

    request: tuple[str, ...]
    """The trip: rider=NAME pickup=PLACE dropoff=PLACE and pickup_time=HH:MM or appointment_time=HH:MM; or
    as JSON."""
    day: Path | None = None
    """CSV file of the day's bookings: columns rider, pickup, dropoff, pickup_window and dropoff_window
    (HH:MM-HH:MM), optionally passengers and purpose. Without it the day is empty."""
    json: bool = False
    """Print one JSON object, as the API returns it."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class QuoteArguments:
    """Quote one trip for a day of bookings, without a server."""

    quote: QuoteOptions
    desk: DeskSettings = field(default_factory=DeskSettings)


def run_quote(argv: Sequence[str]) -> int:
    """Print what the desk would answer to one request."""
    require_serve_extra()
    from hundredfold.desk.models import DeskError
    from hundredfold.desk.service import Desk
    from hundredfold.desk.storage import Journal

    parsed = parse_flags(QuoteArguments, argv, "hundredfold quote", config=(tyro.conf.OmitArgPrefixes,))
    args = parsed.quote
    policy = desk_policy(args)
    desk = Desk(policy, Journal("sqlite://"), with_service(parsed.desk, policy.settings.service))
    day = desk.clock.today() + timedelta(days=1)
    if args.day is not None:
        _book_file(desk, day, args.day)
    trip = _trip(_request_fields(args.request), "--request")
    _check_places(desk, trip)
    try:
        quote = desk.request(day, trip)
    except DeskError as error:
        raise SettingsError(f"--request: {error.reason}") from error
    if args.json:
        print(quote.model_dump_json())
    else:
        print_text(quote_text(quote))
    return 0


def quote_text(quote: Quote) -> str:
    """A quote for people."""
    own = quote.as_requested
    times = f"pickup {own.pickup_window.text}, dropoff {own.dropoff_window.text}"
    cost = f"adds {own.added_minutes:.0f} min of driving. " if own.added_minutes is not None else ""
    lines = [f"as requested: {times}: {cost}{own.reason}"]
    for offer in quote.offers:
        mark = " (recommended)" if offer.recommended else ""
        saving = offer.expected_saving_minutes
        expected = "" if saving is None else f", expected saving {saving:.1f} min"
        lines.append(
            f"offer {offer.offer}{mark}: pickup {offer.pickup_window.text}, dropoff {offer.dropoff_window.text}: "
            f"accepted with {format_percent(offer.probability, 0)}{expected}. {offer.reason}"
        )
    if not quote.servable:
        lines.append("The trip cannot be served.")
    return "\n".join([*lines, *quote.notes])


def _check_places(desk: Desk, trip: TripIn) -> None:
    """Raise a SettingsError for a place that does not exist, which names it and others."""
    from hundredfold.desk.text import normalised

    names = [place.name for place in desk.places()]
    for field_name in ("pickup", "dropoff"):
        name = getattr(trip, field_name)
        if normalised(name) not in map(normalised, names):
            hint = suggest(name, names, f"places are, for example, {', '.join(names[:SHOWN_PLACES])}.")
            raise SettingsError(f"--request: {field_name}: there is no place {printable(name)!r}; {hint}")


def _request_fields(words: Sequence[str]) -> dict[str, Any]:
    """The fields of key=value words, or of one JSON object."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            fields: dict[str, Any] = json.loads(words[0])
        except ValueError as error:
            raise SettingsError(f"--request is not valid JSON: {error}.") from error
        return fields
    without = [word for word in words if "=" not in word]
    if without:
        raise SettingsError(f"--request expects words like rider=NAME, got {without[0]!r}.")
    return dict(word.split("=", 1) for word in words)


def _trip(fields: dict[str, Any], source: str) -> TripIn:
    from pydantic import ValidationError

    from hundredfold.desk.models import TripIn
    from hundredfold.desk.text import problems_text

    try:
        return TripIn.model_validate(fields)
    except ValidationError as error:
        raise SettingsError(f"{source}: {problems_text(error.errors())}") from error


def _book_file(desk: Desk, day: Any, path: Path) -> None:
    """Book the rows of a CSV file with the windows they have."""
    from hundredfold.desk.models import DeskError, ResponseIn

    problems = Problems()
    table = read_table(path, "bookings", problems)
    problems.raise_any()
    assert table is not None, "a table that cannot be read is a problem"
    table.require_columns(("rider", "pickup", "dropoff", "pickup_window", "dropoff_window"))
    for number in range(len(table.rows)):
        fields = {name: cell for name, cell in zip(table.header, table.rows[number], strict=True) if cell}
        for column in ("pickup_window", "dropoff_window"):
            fields[column] = _window(table, number, column, fields.get(column, ""))
        trip = _trip(fields, f"{path}, row {table.row_numbers[number]}")
        try:
            quote = desk.request(day, trip, 0)
            desk.respond(quote.request_id, ResponseIn(quote_id=quote.quote_id, choice="as_requested"))
        except DeskError as error:
            raise SettingsError(f"{path}, row {table.row_numbers[number]}: {error.reason}") from error


def _window(table: CsvTable, row: int, column: str, text: str) -> Any:
    early, _, late = (clock_minutes(part.strip()) for part in text.partition("-"))
    if early is None or late is None:
        raise table.error(row, column, "expected a window like 08:30-09:00.")
    return {"early": early, "late": late}
