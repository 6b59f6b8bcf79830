"""The journal: its tables are those of the migrations, in SQLite and in PostgreSQL, from scratch and as an update."""

from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from helpers.desk import FIRST_DAY
from helpers.postgres import postgres_url
from hundredfold.core.errors import HundredfoldError
from hundredfold.desk.storage import Base, Event, Journal, migrate


@contextmanager
def database(kind, folder):
    if kind == "postgresql":
        with postgres_url() as url:
            yield url
    else:
        yield f"sqlite:///{folder / 'desk.db'}"


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.process)])
def test_migrations_create_the_tables_of_the_models(kind, tmp_path):
    with database(kind, tmp_path) as url:
        engine = create_engine(url)
        for _ in range(2):  # the second time nothing is left to do
            migrate(engine)
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []
            assert context.get_current_revision() == "0001"
        assert set(inspect(engine).get_table_names()) == {"journal", "alembic_version"}
        engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.process)])
def test_events_come_back_as_they_were_written(kind, tmp_path):
    data = {"windows": [[0.1 + 0.2, 1e-17]], "rider": "Zo\u00eb \U0001f600 '; DROP TABLE journal; --"}
    with database(kind, tmp_path) as url:
        journal = Journal(url)
        (stored,) = journal.append(
            [Event("request", FIRST_DAY, "a", data["rider"], data)], datetime(2100, 1, 1, tzinfo=UTC)
        )
        journal.close()
        again = Journal(url)
        assert list(again.all_events()) == [stored]
        assert again.of_rider(data["rider"]) == [stored]
        again.close()


def test_a_database_of_a_later_version_is_refused(tmp_path):
    url = f"sqlite:///{tmp_path / 'desk.db'}"
    Journal(url).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(HundredfoldError, match="another version"):
        Journal(url)
