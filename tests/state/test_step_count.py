"""Batches are counted right, also where one call trains several of them, or fewer than it asked for."""

from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.state.progress import StepCounter


def test_every_batch_counts_once_over_epochs() -> None:
    count = StepCounter()
    for epoch in range(2):
        count.begin_epoch(epoch)
        count.enter_epoch(3)
        for end_step in range(3):
            count.trained_to(end_step)
        assert count.position("within") == Position("within", epoch, 3, 3 * (epoch + 1))
        count.end_epoch(epoch)
        assert count.position("between") == Position("between", epoch + 1, 0, 3 * (epoch + 1))


def test_a_call_of_several_steps_counts_what_was_there() -> None:
    count = StepCounter()
    count.begin_epoch(0)
    count.enter_epoch(5)
    count.trained_to(3)
    assert (count.batch, count.step) == (4, 4)
    count.trained_to(7)
    assert (count.batch, count.step) == (5, 5)


def test_batches_that_an_earlier_process_trained_do_not_count_again() -> None:
    count = StepCounter()
    count.resume(Position("within", 2, 3, 11))
    count.begin_epoch(2)
    count.enter_epoch(None)
    count.skip_to(3)
    count.trained_to(3)
    assert count.position("within") == Position("within", 2, 4, 12)
