"""What fedappeal.flower.privacy relies on: Flower's norm, clipping, and the generator behind its noise."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedappeal.flower import messages, privacy

SENT = [np.array([1.0, 2.0], np.float32), np.array([[0.0]], np.float32)]
OWN = [np.array([4.0, 2.0], np.float32), np.array([[4.0]], np.float32)]


def test_the_norm_is_that_of_the_whole_update() -> None:
    assert privacy.update_norm(OWN, SENT) == pytest.approx(5.0)


def test_clipping_scales_the_update_and_leaves_its_arguments() -> None:
    clipped = privacy.clip_update(OWN, SENT, 1.0)
    np.testing.assert_allclose(clipped[0], [1.6, 2.0], rtol=1e-6)
    np.testing.assert_allclose(clipped[1], [[0.8]], rtol=1e-6)
    np.testing.assert_array_equal(OWN[0], [4.0, 2.0])
    np.testing.assert_array_equal(SENT[0], [1.0, 2.0])


def test_flower_divides_by_the_norm_of_an_update() -> None:
    with np.errstate(all="ignore"), pytest.raises(ZeroDivisionError):
        privacy.clip_update(SENT, SENT, 1.0)


def noisy(seed: int) -> np.ndarray:
    messages.be_sender(7, 1, 9)
    message = Message(RecordDict({"arrays": ArrayRecord({"w": Array(SENT[0])})}), 5, "train", ttl=60.0)
    messages.set_message_id(message, "m")
    reply = Message(RecordDict({"arrays": ArrayRecord({"w": Array(OWN[0])})}), reply_to=message)
    answer = privacy.clip_and_noise(message, reply, 1.0, 1.0, 1.0, 1e-5, seed)
    values: np.ndarray = answer.content["arrays"]["w"].numpy()
    return values


def test_the_noise_is_that_of_the_seed_and_numpys_generator_is_put_back() -> None:
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    first, again, other = noisy(2**40 + 5), noisy(2**40 + 5), noisy(6)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_the_noise_has_the_papers_deviation_around_the_clipped_update() -> None:
    """sigma = S sqrt(2 ln(1.25 / delta)) / epsilon; the second value's update is 0."""
    values = np.array([noisy(seed) for seed in range(400)])
    sigma = np.sqrt(2 * np.log(1.25e5))
    assert values[:, 1].std() == pytest.approx(sigma, rel=0.1)
    assert values[:, 0].mean() == pytest.approx(2.0, abs=4 * sigma / 20)  # 1 + an update of 3, clipped to 1
