"""Channel between the parent and a worker: ranges of env ids, room for them, closing."""

import fcntl
import os
import socket
import termios
import threading
from contextlib import closing

import numpy as np
import pytest

from helpers.processes import HANG_SECONDS, wait_until
from hundredfold.backends.processes.channel import RANGE, Channel, ParentChannel, pack_ranges, recv_fds


def connected(shard_size=4):
    """The parent's and the worker's end, and the pipe that breaks when the parent dies."""
    parent_socket, worker_socket = socket.socketpair()
    parent = ParentChannel(parent_socket, shard_size, HANG_SECONDS)
    parent.send_worker_fds()
    read_fd, write_fd, death_fd = recv_fds(worker_socket, 3)
    return parent, Channel(worker_socket, read_fd, write_fd), death_fd


@pytest.mark.parametrize(
    ("env_ids", "ranges"),
    [
        (range(100), [(0, 100)]),
        (range(7, 40), [(7, 40)]),
        ([*range(1, 40), *range(42, 98), 99], [(1, 40), (42, 98), (99, 100)]),
        (range(0, 60, 2), [(env_id, env_id + 1) for env_id in range(0, 60, 2)]),
    ],
)
def test_many_env_ids_are_packed_into_as_few_ranges_as_possible(env_ids, ranges):
    packed = pack_ranges(np.array(env_ids, np.int64))
    assert list(RANGE.iter_unpack(packed)) == ranges


def test_ranges_and_messages_arrive_in_order():
    parent, worker, death_fd = connected()
    with closing(parent), closing(worker):
        parent.write_ranges(pack_ranges(np.array([0, 1, 3])))
        parent.send_message("state", 7)
        parent.wake()
        assert worker.read_ranges() == [(0, 2), (3, 4), (-1, -1), (0, 0)]
        assert worker.recv_message() == ("state", 7)
    os.close(death_fd)


def test_a_range_that_arrives_in_parts_is_put_together():
    parent, worker, death_fd = connected()
    with closing(parent), closing(worker):
        packed, found = pack_ranges(np.array([2, 3])), []
        parent.write_ranges(packed[:3])
        thread = threading.Thread(target=lambda: found.append(worker.read_ranges()), daemon=True)
        thread.start()
        wait_until(lambda: unread_bytes(worker.read_fd) == 0, "the first part")
        parent.write_ranges(packed[3:])
        thread.join(HANG_SECONDS)
        assert found == [[(2, 4)]]
    os.close(death_fd)


def unread_bytes(fd):
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), "little")


def test_the_end_of_the_other_side_is_noticed():
    parent, worker, death_fd = connected()
    parent.close()
    assert worker.read_ranges() is None
    with pytest.raises(EOFError, match="gone"):
        worker.recv_message()
    assert os.read(death_fd, 1) == b""
    worker.close()
    os.close(death_fd)


@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="the system sets the size of pipes")
def test_the_pipes_have_room_for_a_range_of_every_env():
    parent, worker, death_fd = connected(shard_size=20_000)
    with closing(parent), closing(worker):
        for fd in (parent.read_fd, worker.read_fd):
            assert fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) >= 20_000 * RANGE.size
    os.close(death_fd)


def test_a_channel_closed_twice_closes_nothing_else():
    parent, worker, death_fd = connected()
    for end in (parent, worker):
        end.close()
        assert end.messages.fileno() == -1
        reused = [fd for _ in range(4) for fd in os.pipe()]  # they have the numbers of those closed
        end.close()
        for fd in reused:
            os.close(fd)  # raises if it is closed already
    os.close(death_fd)
