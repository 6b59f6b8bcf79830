"""A PostgreSQL server of the system in a temporary folder."""

import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.processes import run_process, start_process, wait_until


def find_program(name):
    """Path of a program of PostgreSQL; Debian keeps them out of PATH. None if absent."""
    debian = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return shutil.which(name) or (debian[-1] if debian else None)


def accepts_connections(folder):
    """Whether the server has started; its socket is there before."""
    import psycopg

    try:
        psycopg.connect(host=str(folder), user="desk", dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def postgres_url():
    """Start a server that only this machine's processes reach; yields its database URL."""
    initdb, postgres = find_program("initdb"), find_program("postgres")
    if initdb is None or postgres is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="hundredfold-postgres-"))
    options = {}
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        owner = pwd.getpwnam("nobody")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        options = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    try:
        arguments = [initdb, "-D", folder / "data", "-U", "desk", "--auth=trust", "--no-sync", "--encoding=UTF8"]
        run_process(arguments, cwd=folder, **options)
        argv = [postgres, "-D", str(folder / "data"), "-k", str(folder), "-c", "listen_addresses="]
        server = start_process(argv, stderr=subprocess.DEVNULL, cwd=folder, **options)
        try:
            wait_until(lambda: accepts_connections(folder) or server.poll() is not None, "PostgreSQL")
            assert server.poll() is None
            yield f"postgresql+psycopg://desk@/postgres?host={folder}"
        finally:
            server.terminate()
            server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
