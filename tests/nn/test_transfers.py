"""One layer of a step in which tokens leave and enter, with halves that say what they were given."""

from __future__ import annotations

import torch
from torch import Tensor

from antiphon.nn.attention import LayerKv, PagedBatch
from antiphon.nn.transfers import Exchange, LayerExchanges, Left


class Halves:
    """q is x + 1 of one head, k and v are x; the attention is added."""

    def pre_attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = x[:, None]
        return (heads + 1) * cos[:, None], heads, heads

    def post_attention(self, x: Tensor, attention: Tensor) -> Tensor:
        return x + attention[:, 0]


def places(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def through(exchange: Exchange, num_staying: int) -> tuple[Tensor, dict[int, Left], Tensor]:
    """Layer 5 over tokens 0, 10, 20, 30, whose attention is ten times q; also the pages' keys."""
    x = torch.arange(4.0)[:, None] * 10
    ones = torch.ones(4, 1)
    pages = torch.zeros(1, 4, 1, 1), torch.zeros(1, 4, 1, 1)
    batch = PagedBatch.build([1] * num_staying, list(range(num_staying)), [[0]] * num_staying, 4)
    transfers = LayerExchanges([exchange] * 6)
    out = transfers.through(5, Halves(), (x, ones, ones), LayerKv(*pages, batch), lambda q, *_: 10 * q)
    return out.flatten(), transfers.left, pages[0].flatten()


def test_who_leaves_is_kept_and_who_enters_goes_on() -> None:
    """Token 1 leaves, 3 enters with attention 7, 0 and 2 go through."""
    entering = torch.full((1, 1, 1), 7.0)
    exchange = Exchange(places(0, 1, 2), places(1), places(0, 2), places(3), entering)
    out, left, keys = through(exchange, 2)
    assert out.tolist() == [0 + 10, 10, 20 + 210, 30 + 7]
    assert (left[5].residual.item(), left[5].q.item(), left[5].k.item()) == (10, 11, 10)
    assert keys.tolist() == [0, 20, 0, 0]


def test_a_layer_may_have_nobody_before_or_behind_its_attention() -> None:
    nobody = places()
    out, left, _ = through(Exchange(nobody, nobody, nobody, nobody), 0)
    assert out.tolist() == [0, 10, 20, 30]
    assert not left
    out, left, _ = through(Exchange(places(2), places(0), nobody, nobody), 0)
    assert out.tolist() == [0, 10, 20, 30]
    assert left[5].residual.tolist() == [[20]]
    out, left, _ = through(Exchange(nobody, nobody, nobody, places(1), torch.ones(1, 1, 1)), 0)
    assert out.tolist() == [0, 11, 20, 30]
