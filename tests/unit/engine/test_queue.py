"""The queue of a round: what can be shared stays with one worker, and nobody waits while there is work."""

from __future__ import annotations

from moeguard.core.case import Case
from moeguard.engine.queue import Grouped, Listed, queue_of
from moeguard.engine.worker import Job

CASE = Case.model_validate({"shape": {"num_tokens": 1, "hidden_size": 8, "intermediate_size": 8, "num_experts": 1, "top_k": 1}})


def grouped(entries: str, refused: str = "") -> tuple[Grouped[str], list[str]]:
    """Entries of one letter, in groups of equal ones; and what was launched, in order."""
    launched: list[str] = []

    def launch(entry: str) -> Job | None:
        if entry in refused:
            return None
        launched.append(entry)
        return Job(len(launched), entry, CASE)

    return Grouped(entries, str, launch), launched


def took(queue: Grouped[str], *workers: int) -> str:
    """What these workers, one after the other, are given; a dot for nothing."""
    return "".join("." if (job := queue.take(worker)) is None else job.backend for worker in workers)


def test_a_worker_ends_its_group_before_it_begins_another() -> None:
    queue, _ = grouped("aaabbcd")
    assert took(queue, 0, 1, 0, 1, 1, 0, 1) == "ababcad"


def test_at_the_end_the_longest_group_is_shared() -> None:
    queue, launched = grouped("aaaab")
    assert took(queue, 0, 1, 1, 1, 0, 1, 0) == "abaaa.."
    assert sorted(launched) == list("aaaab")


def test_one_worker_gets_all_in_order() -> None:
    queue, _ = grouped("aabcca")
    assert took(queue, *[0] * 7) == "aabcca."


def test_more_workers_than_groups_all_have_work() -> None:
    queue, _ = grouped("aaaa")
    assert took(queue, 3, 2, 1, 0, 3) == "aaaa."


def test_what_is_not_launched_is_passed_over() -> None:
    queue, launched = grouped("aabbcc", refused="b")
    assert took(queue, 0, 1, 0, 1, 0, 1) == "acac.." and launched == list("acac")
    assert took(grouped("bbb", refused="b")[0], 0) == "."


def test_nothing_is_launched_before_its_turn() -> None:
    queue, launched = grouped("ab")
    assert not launched
    queue.take(0)
    assert launched == ["a"]


def test_a_list_of_jobs_is_a_queue() -> None:
    jobs = [Job(number, "one", CASE) for number in range(3)]
    queue = queue_of(iter(jobs))
    assert isinstance(queue, Listed) and [queue.take(worker) for worker in (1, 0, 1, 0)] == [*jobs, None]
    assert queue_of(queue) is queue
