"""The store of a job: reached by its workers, and kept through its masters' deaths."""

import pytest

from drivetrain_core import ProgramError
from drivetrain_core.services import JobStore, get_service
from drivetrain_elastic._membership._connection import MasterJobStore
from drivetrain_testing import check_job_store


@pytest.fixture
def worker(job, monkeypatch):
    """Lets this process be a worker of an agent's; returns the master."""
    master = job()
    monkeypatch.setenv("DRIVETRAIN_ELASTIC_AGENT", "agent.sock")
    monkeypatch.setenv("DRIVETRAIN_ELASTIC_MASTER", master.address)
    monkeypatch.setenv("DRIVETRAIN_ELASTIC_TOKEN", master.token)
    return master


def test_elastic_provides_it():
    store = get_service("job_store")
    assert type(store) is MasterJobStore
    assert isinstance(store, JobStore)


def test_process_that_no_agent_has_started_has_none():
    with MasterJobStore().open() as store:
        assert store is None


def test_worker_without_a_master_is_told(monkeypatch):
    monkeypatch.setenv("DRIVETRAIN_ELASTIC_AGENT", "agent.sock")
    with pytest.raises(ProgramError, match="master"), MasterJobStore().open():
        pass


def test_it_keeps_the_contract(worker):
    check_job_store(MasterJobStore())


def test_values_outlive_the_master_and_numbers_may_not(worker, job):
    with MasterJobStore().open() as store:
        store.set("set", b"\x00\xff\n")
        store.compare_set("compared", "", "1")
        store.compare_set("compared", "", "not taken")
        store.compare_set("compared", "1", "2")
        store.add("n", 5)
        worker.stop()
        job()
        assert store.get("set") == b"\x00\xff\n"
        assert store.get("compared") == b"2"
        assert store.add("n", 1) == 1


def test_values_outlive_a_journal_that_is_made_shorter(worker, job, monkeypatch):
    monkeypatch.setattr("drivetrain_elastic._master._master._MOST_RECORDS", 3)
    with MasterJobStore().open() as store:
        for number in range(5):
            store.set("a", str(number))
        worker.stop()
        job().stop()  # it has made the journal shorter
        job()
        assert store.get("a") == b"4"
