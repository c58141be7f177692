"""Checked here: every form of attention (`reference`, `per_position`, `composed`, and `attend` with each
implementation that runs on a CPU) against equations 3 and 4 by explicit Python loops in float64, with masks, caches,
labels and tables of different k; gradients against finite differences (gradcheck) and against `reference`; zero
tables and k = 0 against torch's own attention; `weights` against the softmax in loops; `spread` and `collect` against
loops and against each other (they are adjoint); rows right of the diagonal, fully hidden rows, float16, bfloat16.
"""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

from rpr.bench.benchmark import table_gradient_errors
from rpr.model import attention
from rpr.model.attention import attend, collect, composed, per_position, reference, spread, weights
from rpr.model.vectors import relative_rows

pytestmark = pytest.mark.usefixtures("one_thread")


D_HEAD, HEADS = 3, 2
FORM = {
    "reference": reference,
    "per_position": per_position,
    "composed": composed,
    "auto": attend,
    "dense": partial(attend, implementation="dense"),
    "blockwise": partial(attend, implementation="blockwise"),
}
FORMS = pytest.mark.parametrize("form", FORM.values(), ids=FORM.keys())
PASSES = pytest.mark.parametrize("form", [FORM["dense"], FORM["blockwise"]], ids=["dense", "blockwise"])
PLACES = pytest.mark.parametrize(
    "on_keys, on_values",
    [(True, True), (True, False), (False, True), (False, False)],
    ids=["keys_and_values", "keys", "values", "neither"],
)
LAYOUTS = pytest.mark.parametrize("per_head", [True, False], ids=["per_head", "shared"])
# (queries, position of the first, keys): whole sentences, one step with a cache, several steps at once, and keys that
# end before or go on after the queries.
OFFSETS = [(1, 0, 1), (1, 6, 7), (3, 4, 7), (7, 1, 8), (2, 0, 9), (5, 3, 12), (1, 0, 6), (4, 6, 3), (2, 9, 1)]


def make_table(clip_distance, per_head, *, heads=HEADS, width=D_HEAD):
    return make_rows(2 * clip_distance + 1, per_head, heads=heads, width=width)


def make_rows(rows, per_head, *, heads=HEADS, width=D_HEAD):
    return torch.randn((heads, rows, width) if per_head else (rows, width), dtype=torch.float64)


def make_inputs(num_queries, num_keys, clip_distance, *, batch=1, per_head=True, on_keys=True, on_values=True):
    """q, k, v [B, H, ., D] and the two tables (or None), float64; clip_distance may be a pair, for keys and values."""
    of_keys, of_values = clip_distance if isinstance(clip_distance, tuple) else (clip_distance, clip_distance)
    torch.manual_seed(1000 * num_queries + 100 * num_keys + of_keys)
    q = torch.randn(batch, HEADS, num_queries, D_HEAD, dtype=torch.float64)
    k, v = torch.randn(2, batch, HEADS, num_keys, D_HEAD, dtype=torch.float64)
    key_table = make_table(of_keys, per_head) if on_keys else None
    value_table = make_table(of_values, per_head) if on_values else None
    return q, k, v, {"key_table": key_table, "value_table": value_table}


def table_row(table, head, distance):
    """w_clip(distance, k) of one head, as a list: the definition below equation 4."""
    rows = (table if table.dim() == 2 else table[head]).tolist()
    clip_distance = (len(rows) - 1) // 2
    return rows[max(-clip_distance, min(clip_distance, distance)) + clip_distance]


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def edge_vectors(table, labels, batch, heads, num_queries, num_keys, first_query, width):
    """a_ij as a function of (sentence, head, query, key); zeros where there is no table."""
    if table is None:
        return lambda b, h, i, j: [0.0] * width
    if labels is None:
        distances = range(-(first_query + num_queries - 1), max(1, num_keys - first_query))
        by_distance = {(h, d): table_row(table, h, d) for h in range(heads) for d in distances}
        return lambda b, h, i, j: by_distance[h, j - (first_query + i)]
    rows = table.expand(heads, *table.shape[-2:]).tolist()
    label = labels.expand(batch, num_queries, num_keys).tolist()
    return lambda b, h, i, j: rows[h][label[b][i][j]]


def weights_by_loops(q, k, *, key_table=None, labels=None, mask=None, causal=False, first_query=0):
    """The softmax of equation 4, one (sentence, head, query) at a time: {key: weight} of the keys that are visible."""
    batch, heads, num_queries, width = q.shape
    num_keys = k.shape[2]
    q_list, k_list = q.tolist(), k.tolist()
    visible = None if mask is None else mask.expand(batch, heads, num_queries, num_keys).tolist()
    a_key = edge_vectors(key_table, labels, batch, heads, num_queries, num_keys, first_query, width)
    weights = {}
    for b, h, i in itertools.product(range(batch), range(heads), range(num_queries)):
        exponentials = {}
        for j in range(num_keys):
            if (visible is None or visible[b][h][i][j]) and (not causal or j <= first_query + i):
                key = [x + y for x, y in zip(k_list[b][h][j], a_key(b, h, i, j), strict=True)]
                exponentials[j] = math.exp(dot(q_list[b][h][i], key) / math.sqrt(width))
        total = math.fsum(exponentials.values())
        weights[b, h, i] = {j: exponential / total for j, exponential in exponentials.items()}
    return weights


def by_loops(q, k, v, *, value_table=None, labels=None, first_query=0, **arguments):
    """Equations 3 and 4, one (sentence, head, query, key) at a time; a hidden key has no part in the softmax."""
    batch, heads, num_queries, width = q.shape
    weights = weights_by_loops(q, k, labels=labels, first_query=first_query, **arguments)
    a_value = edge_vectors(value_table, labels, batch, heads, num_queries, k.shape[2], first_query, width)
    v_list = v.tolist()
    out = torch.empty(q.shape, dtype=torch.float64)
    for (b, h, i), of_keys in weights.items():
        z = [0.0] * width
        for j, weight in of_keys.items():
            a = a_value(b, h, i, j)
            for c in range(width):
                z[c] += weight * (v_list[b][h][j][c] + a[c])
        out[b, h, i] = torch.tensor(z, dtype=torch.float64)
    return out


def assert_equal(actual, expected, name=""):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, msg=lambda text: f"{name}: {text}")


def causal_mask(num_queries, first_query, num_keys):
    return torch.arange(num_keys)[None, :] <= first_query + torch.arange(num_queries)[:, None]


def gradients(form, inputs, cotangent, **arguments):
    """Of q, k, v and the tables that are there; `inputs` is (q, k, v, key_table, value_table)."""
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
    q, k, v, key_table, value_table = leaves
    z = form(q, k, v, key_table=key_table, value_table=value_table, **arguments)
    return z.detach(), torch.autograd.grad(z, [x for x in leaves if x is not None], cotangent)


# The equations


def test_two_positions_worked_by_hand():
    # q_1 = q_2 = 1, keys and values 0; d_z = 1, so no scaling. w^K = (0, 0, log 3): the key to the right counts three
    # times. w^V = (7, 0, 4). Query 1 looks at itself (1/4 of 0) and to the right (3/4 of 4); query 2 at both equally.
    q, zeros = torch.ones(1, 1, 2, 1, dtype=torch.float64), torch.zeros(1, 1, 2, 1, dtype=torch.float64)
    key_table = torch.tensor([[0.0], [0.0], [math.log(3)]], dtype=torch.float64)
    value_table = torch.tensor([[7.0], [0.0], [4.0]], dtype=torch.float64)
    for form in FORM.values():
        out = form(q, zeros, zeros, key_table=key_table, value_table=value_table)
        assert out.flatten().tolist() == pytest.approx([3.0, 3.5], rel=1e-12)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 13, 24, 40])
def test_all_forms_equal_equations_3_and_4_by_loops(length):
    for clip_distance in sorted({0, 1, 2, 16, length - 1, length + 3}):
        q, k, v, tables = make_inputs(length, length, clip_distance, per_head=length % 2 == 0)
        expected = by_loops(q, k, v, **tables)
        for name, form in FORM.items():
            assert_equal(form(q, k, v, **tables), expected, name)


@pytest.mark.parametrize("num_queries, first_query, num_keys", OFFSETS)
def test_queries_that_start_later_equal_the_loops(num_queries, first_query, num_keys):
    for clip_distance in (0, 3, 64):
        q, k, v, tables = make_inputs(num_queries, num_keys, clip_distance, batch=2, per_head=clip_distance == 3)
        expected = by_loops(q, k, v, first_query=first_query, **tables)
        for name, form in FORM.items():
            assert_equal(form(q, k, v, first_query=first_query, **tables), expected, name)


@FORMS
def test_a_hidden_key_has_no_influence_however_large(form):
    q, k, v, tables = make_inputs(5, 5, 2)
    mask = torch.tensor([True, True, False, True, True])
    quiet = form(q, k, v, mask=mask, **tables)
    k[:, :, 2], v[:, :, 2] = 1e4, 1e6
    assert torch.equal(form(q, k, v, mask=mask, **tables), quiet)


@pytest.mark.parametrize(
    "ones, name", [*zip(itertools.product([False, True], repeat=4), itertools.cycle(FORM), strict=False)], ids=str
)
def test_a_mask_may_be_of_any_shape_that_broadcasts(ones, name):
    form = FORM[name]
    q, k, v, tables = make_inputs(5, 6, 2, batch=3)
    shape = [1 if one else size for one, size in zip(ones, (3, HEADS, 5, 6), strict=True)]
    mask = torch.rand(shape) < 0.6
    mask[..., 0] = True  # every query sees something
    whole = mask.expand(3, HEADS, 5, 6).clone()
    expected = reference(q, k, v, mask=whole, causal=True, **tables)
    assert_equal(form(q, k, v, mask=mask, causal=True, **tables), expected)
    while mask.dim() > 1 and mask.shape[0] == 1:
        mask = mask[0]
        assert_equal(form(q, k, v, mask=mask, causal=True, **tables), expected)


# Everything together: (queries, position of the first, keys), k of the keys and of the values, and what is hidden.
SITUATIONS = {
    "one": ((1, 0, 1), (2, 0), {}),
    "whole": ((6, 0, 6), (1, 3), {}),
    "clipped_far": ((11, 0, 11), (0, 2), {}),
    "unclipped": ((5, 0, 5), (9, 4), {}),
    "padding": ((7, 0, 7), (3, 1), {"mask": "padding"}),
    "mask_by_head": ((6, 0, 6), (2, 4), {"mask": "by_head"}),
    "causal": ((7, 0, 7), (2, 3), {"causal": True}),
    "causal_padding": ((8, 0, 8), (0, 1), {"causal": True, "mask": "padding"}),
    "causal_mask_by_head": ((5, 0, 5), (6, 2), {"causal": True, "mask": "by_head"}),
    "step_with_cache": ((1, 6, 7), (2, 4), {"causal": True}),
    "steps_with_cache": ((3, 4, 7), (1, 5), {"causal": True, "mask": "padding"}),
    "steps_before_the_end": ((3, 2, 9), (2, 0), {"causal": True}),
    "steps_that_see_all": ((4, 3, 9), (4, 1), {"mask": "padding"}),
    "fewer_keys": ((4, 6, 3), (1, 2), {}),
    "fewer_keys_causal": ((6, 1, 3), (2, 1), {"causal": True}),
    "labels": ((5, 0, 5), None, {"labels": "shared"}),
    "labels_by_sentence": ((4, 0, 6), None, {"labels": "by_sentence", "mask": "padding"}),
    "labels_causal": ((4, 2, 6), None, {"labels": "by_sentence", "causal": True, "mask": "by_head"}),
}
SITUATION = pytest.mark.parametrize("situation", SITUATIONS)


def make_situation(name, *, batch=2, per_head=True, on_keys=True, on_values=True):
    """[q, k, v, key_table, value_table], float64, and the other arguments; every query sees the first key."""
    (num_queries, first_query, num_keys), clip_distances, hiding = SITUATIONS[name]
    arguments = {"first_query": first_query, **hiding}
    q, k, v, tables = make_inputs(
        num_queries,
        num_keys,
        clip_distances or 1,
        batch=batch,
        per_head=per_head,
        on_keys=on_keys,
        on_values=on_values,
    )
    if "mask" in hiding:
        shape = (batch, 1, 1, num_keys) if hiding["mask"] == "padding" else (batch, HEADS, num_queries, num_keys)
        mask = torch.rand(shape) < 0.5
        mask[..., 0] = True
        arguments["mask"] = mask
    if "labels" in hiding:  # 4 labels: an even number of rows, and more rows for the values than there are labels
        shape = (num_queries, num_keys) if hiding["labels"] == "shared" else (batch, num_queries, num_keys)
        arguments["labels"] = torch.randint(4, shape)
        tables["key_table"] = make_rows(4, per_head) if on_keys else None
        tables["value_table"] = make_rows(6, per_head) if on_values else None
    return [q, k, v, *tables.values()], arguments


@SITUATION
@PLACES
def test_all_forms_equal_the_loops_and_their_gradients_the_reference(situation, on_keys, on_values):
    per_head = [*SITUATIONS].index(situation) % 2 == on_keys
    inputs, arguments = make_situation(situation, per_head=per_head, on_keys=on_keys, on_values=on_values)
    q, k, v, key_table, value_table = inputs
    expected = by_loops(q, k, v, key_table=key_table, value_table=value_table, **arguments)
    cotangent = torch.randn_like(q)
    _, of_reference = gradients(reference, inputs, cotangent, **arguments)
    for name, form in FORM.items():
        z, of_form = gradients(form, inputs, cotangent, **arguments)
        assert_equal(z, expected, name)
        assert len(of_form) == 3 + on_keys + on_values
        for actual, right in zip(of_form, of_reference, strict=True):
            torch.testing.assert_close(actual, right, rtol=1e-11, atol=1e-11, msg=lambda text: f"{name}: {text}")  # noqa: B023
        with torch.no_grad():  # a decoding step
            assert_equal(form(q, k, v, key_table=key_table, value_table=value_table, **arguments), expected, name)


@SITUATION
@pytest.mark.parametrize("dtype, error", [(torch.float32, 1e-5), (torch.bfloat16, 0.04)], ids=["float32", "bfloat16"])
def test_narrower_numbers_are_within_their_rounding(situation, dtype, error):
    # Against the reference in float64 on the same numbers: what is exactly representable in the narrow type.
    inputs, arguments = make_situation(situation)
    narrow = [x.to(dtype) for x in inputs]
    cotangent = torch.randn_like(inputs[0]).to(dtype)
    z_right, right = gradients(reference, [x.double() for x in narrow], cotangent.double(), **arguments)
    size = max(x.norm() for x in right)
    for name, form in FORM.items():
        z, of_form = gradients(form, narrow, cotangent, **arguments)
        assert z.dtype == dtype and relative_error(z, z_right) < error, name
        for actual, exact in zip(of_form, right, strict=True):
            assert actual.dtype == dtype
            # A gradient that is small beside the others comes out of their cancelling.
            assert (actual.double() - exact).norm() < error * max(exact.norm(), size / 4), name


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "situation, on_keys, on_values",
    [
        ("whole", True, True),
        ("whole", True, False),
        ("clipped_far", False, True),
        ("causal_padding", True, True),
        ("labels", True, True),
    ],
)
def test_the_compiled_form_equals_the_reference_forward_and_backward(situation, on_keys, on_values):
    # Afresh each time: after some recompilations torch would run the function as it is, and this test check nothing.
    torch.compiler.reset()
    counters.clear()
    inputs, arguments = make_situation(situation, on_keys=on_keys, on_values=on_values)
    cotangent = torch.randn_like(inputs[0])
    z_right, right = gradients(reference, inputs, cotangent, **arguments)
    z, of_form = gradients(partial(attend, implementation="compiled"), inputs, cotangent, **arguments)
    assert counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(z, z_right, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(of_form, right, rtol=1e-10, atol=1e-10)


# Labels


@FORMS
@pytest.mark.parametrize("per_head, by_sentence", [(True, False), (False, True)])
@pytest.mark.parametrize(
    "num_queries, first_query, num_keys, clip_distance", [(6, 0, 6, 2), (6, 0, 6, 0), (3, 4, 7, 1)]
)
def test_labels_that_are_clipped_distances_give_what_distances_give(
    form, per_head, by_sentence, num_queries, first_query, num_keys, clip_distance
):
    q, k, v, tables = make_inputs(num_queries, num_keys, clip_distance, batch=3, per_head=per_head)
    inputs, cotangent = [q, k, v, *tables.values()], torch.randn_like(q)
    labels = relative_rows(num_queries, num_keys, clip_distance, first_query=first_query)
    if by_sentence:
        labels = labels.expand(3, -1, -1)
    by_distance = gradients(form, inputs, cotangent, first_query=first_query)
    torch.testing.assert_close(gradients(form, inputs, cotangent, labels=labels), by_distance, rtol=1e-11, atol=1e-11)


@FORMS
def test_each_sentence_has_labels_of_its_own(form):
    q, k, v, _ = make_inputs(4, 5, 0, batch=3)
    labels = torch.randint(7, (3, 4, 5))
    tables = {"key_table": make_rows(7, True), "value_table": make_rows(7, True)}
    together = form(q, k, v, labels=labels, **tables)
    for b in range(3):
        alone = form(q[b : b + 1], k[b : b + 1], v[b : b + 1], labels=labels[b], **tables)
        assert_equal(together[b : b + 1], alone)


@FORMS
def test_a_label_that_does_not_occur_gets_no_gradient(form):
    q, k, v, _ = make_inputs(4, 4, 0, batch=2)
    labels = torch.randint(3, (2, 4, 4)) * 2  # rows 0, 2 and 4 of 6
    tables = [make_rows(6, False), make_rows(6, False)]
    for gradient in gradients(form, [q, k, v, *tables], torch.randn_like(q), labels=labels)[1][3:]:
        assert (gradient != 0).any(dim=-1).tolist() == [True, False, True, False, True, False]


# Rows right of the diagonal

CAUSAL = pytest.mark.parametrize(
    "num_queries, first_query, num_keys", [(8, 0, 8), (40, 0, 40), (1, 6, 7), (3, 4, 7), (4, 2, 9), (5, 3, 2)]
)


@FORMS
@CAUSAL
def test_causal_rows_right_of_the_diagonal_change_nothing_and_get_no_gradient(form, num_queries, first_query, num_keys):
    q, k, v, tables = make_inputs(num_queries, num_keys, (3, 2), batch=2, per_head=num_queries % 2 == 0)
    cotangent, arguments = torch.randn_like(q), {"causal": True, "first_query": first_query}
    before = gradients(form, [q, k, v, *tables.values()], cotangent, **arguments)
    for (name, table), of_table in zip(tables.items(), before[1][3:], strict=True):
        clip_distance = table.shape[-2] // 2
        assert (of_table[..., clip_distance + 1 :, :] == 0).all(), name
        table[..., clip_distance + 1 :, :] += 5.0
    after = gradients(form, [q, k, v, *tables.values()], cotangent, **arguments)
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)


@PASSES
@PLACES
@CAUSAL
def test_causal_passes_never_read_rows_right_of_the_diagonal(
    form, on_keys, on_values, num_queries, first_query, num_keys
):
    q, k, v, tables = make_inputs(num_queries, num_keys, (3, 2), batch=2, on_keys=on_keys, on_values=on_values)
    cotangent, arguments = torch.randn_like(q), {"causal": True, "first_query": first_query}
    before = gradients(form, [q, k, v, *tables.values()], cotangent, **arguments)
    for table in tables.values():
        if table is not None:
            table[..., table.shape[-2] // 2 + 1 :, :] = math.nan
    after = gradients(form, [q, k, v, *tables.values()], cotangent, **arguments)
    assert torch.equal(after[0], before[0])
    for actual, expected in zip(after[1], before[1], strict=True):
        assert torch.equal(actual, expected)


@FORMS
def test_causal_equals_the_mask_that_hides_later_keys(form):
    for num_queries, first_query, num_keys in [(6, 0, 6), *OFFSETS]:
        q, k, v, tables = make_inputs(num_queries, num_keys, 2, batch=2)
        mask = causal_mask(num_queries, first_query, num_keys)
        expected = form(q, k, v, mask=mask, first_query=first_query, **tables)
        assert_equal(form(q, k, v, causal=True, first_query=first_query, **tables), expected)


# The two special cases of k


@FORMS
@PLACES
def test_zero_tables_equal_scaled_dot_product_attention(form, on_keys, on_values):
    q, k, v, tables = make_inputs(6, 6, 2, batch=2, on_keys=on_keys, on_values=on_values)
    zeros = {name: None if table is None else torch.zeros_like(table) for name, table in tables.items()}
    mask = causal_mask(6, 0, 6)
    assert_equal(form(q, k, v, **zeros), F.scaled_dot_product_attention(q, k, v))
    assert_equal(form(q, k, v, mask=mask, **zeros), F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


@FORMS
@LAYOUTS
def test_k_0_on_keys_cancels_in_the_softmax(form, per_head):
    q, k, v, tables = make_inputs(6, 6, 0, per_head=per_head, on_values=False)
    assert_equal(form(q, k, v, **tables), F.scaled_dot_product_attention(q, k, v))


@FORMS
@LAYOUTS
def test_k_0_on_values_adds_the_one_vector(form, per_head):
    q, k, v, tables = make_inputs(6, 6, 0, per_head=per_head, on_keys=False)
    plain = F.scaled_dot_product_attention(q, k, v)
    assert_equal(form(q, k, v, **tables), plain + tables["value_table"])  # [H, 1, D] or [1, D]: the same at every query


@FORMS
@pytest.mark.parametrize("per_head, length, beyond", [(True, 1, 9), (False, 2, 1), (True, 6, 1), (False, 6, 9)])
def test_k_at_least_length_minus_1_clips_nothing(form, per_head, length, beyond):
    # The rows of distances that do not occur may hold anything: only the 2 length - 1 rows in the middle count.
    q, k, v, wide = make_inputs(length, length, length - 1 + beyond, per_head=per_head)
    exact = {name: table[..., beyond:-beyond, :] for name, table in wide.items()}
    unclipped = by_loops(q, k, v, **wide)  # no distance here reaches the clip
    assert_equal(form(q, k, v, **wide), unclipped)
    assert_equal(form(q, k, v, **exact), unclipped)
    if length > 2:  # and one row less does change the result
        clipped = {name: table[..., 1:-1, :] for name, table in exact.items()}
        assert (form(q, k, v, **clipped) - unclipped).abs().max() > 1e-3


@FORMS
@pytest.mark.parametrize("length, clip_distance", [(4, 2), (4, 3), (4, 6), (1, 2)])
def test_only_the_rows_that_occur_get_a_gradient(form, length, clip_distance):
    q, k, v, tables = make_inputs(length, length, clip_distance)
    for table in tables.values():
        table.requires_grad_()
    (form(q, k, v, **tables) ** 2).sum().backward()
    for name, table in tables.items():
        touched = (table.grad != 0).any(dim=0).any(dim=-1).tolist()
        occurring = [abs(row - clip_distance) < length for row in range(2 * clip_distance + 1)]
        if length > 1 or name == "value_table":  # a lone key gets weight 1 whatever its score
            assert touched == occurring


@FORMS
@LAYOUTS
@pytest.mark.parametrize("clip_distance", [0, 2])
def test_shifting_queries_and_keys_together_changes_nothing(form, per_head, clip_distance):
    # Only j - i counts: the same sentence after 4 hidden keys, its first query at position 4.
    q, k, v, tables = make_inputs(5, 9, clip_distance, per_head=per_head)
    mask = torch.arange(9) >= 4
    shifted = form(q, k, v, mask=mask, first_query=4, **tables)
    assert_equal(shifted, form(q, k[:, :, 4:], v[:, :, 4:], **tables))


# spread and collect


@LAYOUTS
@pytest.mark.parametrize("num_queries, first_query, num_keys", [(5, 0, 5), (12, 0, 12), *OFFSETS])
@pytest.mark.parametrize("clip_distance", [0, 2, 9])
def test_spread_and_collect_are_adjoint_and_equal_their_sums(
    per_head, num_queries, first_query, num_keys, clip_distance
):
    q, _, _, _ = make_inputs(num_queries, num_keys, clip_distance, batch=2)
    table = make_table(clip_distance, per_head)
    weights = torch.randn(2, HEADS, num_queries, num_keys, dtype=torch.float64)
    scores = spread(q, table, num_keys, first_query=first_query)
    summed = collect(weights, table, first_query=first_query)
    assert scores.shape == weights.shape
    assert summed.shape == q.shape
    torch.testing.assert_close((scores * weights).sum(), (q * summed).sum(), rtol=1e-11, atol=1e-11)
    h, i = HEADS - 1, num_queries - 1
    rows = torch.tensor([table_row(table, h, j - (first_query + i)) for j in range(num_keys)], dtype=torch.float64)
    assert_equal(scores[1, h, i], rows @ q[1, h, i])
    assert_equal(summed[1, h, i], weights[1, h, i] @ rows)


def test_the_gradient_of_spread_is_collect():
    q, _, _, tables = make_inputs(6, 6, 2)
    weights = torch.randn(1, HEADS, 6, 6, dtype=torch.float64)
    spread(q.requires_grad_(), tables["key_table"], 6).backward(weights)
    assert_equal(q.grad, collect(weights, tables["key_table"]))


# Gradients


@pytest.mark.parametrize(
    "name, on_keys, on_values",
    [
        *(("reference", *places) for places in itertools.product([True, False], repeat=2)),
        *((name, True, True) for name in ("composed", "dense", "blockwise")),  # whose other gradients are its
    ],
)
@pytest.mark.parametrize(
    "num_queries, first_query, num_keys, clip_distances, causal, per_head",
    [(4, 0, 4, (1, 0), False, True), (3, 0, 3, (0, 5), True, False), (2, 3, 5, (2, 1), True, True)],
)
def test_gradients_equal_finite_differences(
    name, on_keys, on_values, num_queries, first_query, num_keys, clip_distances, causal, per_head
):
    q, k, v, tables = make_inputs(
        num_queries, num_keys, clip_distances, per_head=per_head, on_keys=on_keys, on_values=on_values
    )
    present = [table for table, of_it in tables.items() if of_it is not None]

    def function(q, k, v, *some):
        return FORM[name](q, k, v, causal=causal, first_query=first_query, **dict(zip(present, some, strict=True)))

    inputs = [x.requires_grad_() for x in (q, k, v, *(tables[table] for table in present))]
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("name", ["reference", "composed", "dense", "blockwise"])
def test_gradients_with_labels_and_a_mask_equal_finite_differences(name):
    inputs, arguments = make_situation("labels_by_sentence")
    inputs = [x.requires_grad_() for x in inputs]

    def function(q, k, v, key_table, value_table):
        return FORM[name](q, k, v, key_table=key_table, value_table=value_table, **arguments)

    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("length, clip_distance, per_head", [(30, 4, True), (30, 64, False), (97, 16, True)])
@pytest.mark.parametrize("hiding", ["nothing", "padding", "causal"])
def test_gradients_of_longer_sentences_agree(per_head, length, clip_distance, hiding):
    q, k, v, tables = make_inputs(length, length, clip_distance, batch=2, per_head=per_head)
    arguments = {"causal": hiding == "causal"}
    if hiding == "padding":
        arguments["mask"] = torch.arange(length) < length - 3
    inputs, cotangent = [q, k, v, *tables.values()], torch.randn_like(q)
    expected = gradients(reference, inputs, cotangent, **arguments)
    for form in FORM.values():
        actual = gradients(form, inputs, cotangent, **arguments)
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@PASSES
def test_only_the_gradients_that_are_asked_for_are_needed(form):
    # Frozen tables, or frozen keys and values: the others' gradients stay what they were.
    q, k, v, tables = make_inputs(6, 6, 2, batch=2)
    inputs, cotangent = [q, k, v, *tables.values()], torch.randn_like(q)
    _, expected = gradients(form, inputs, cotangent)
    for index in range(5):
        leaves = [x.clone().requires_grad_(position == index) for position, x in enumerate(inputs)]
        z = form(*leaves[:3], key_table=leaves[3], value_table=leaves[4])
        assert torch.equal(torch.autograd.grad(z, leaves[index], cotangent)[0], expected[index])


@PASSES
def test_the_passes_refuse_to_be_differentiated_twice(form):
    # Their backward is written by hand: better an error than a second derivative that misses terms.
    q, k, v, tables = make_inputs(4, 4, 1)
    q.requires_grad_()
    (first,) = torch.autograd.grad(form(q, k, v, **tables).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


# The weights


@SITUATION
def test_the_weights_are_the_softmax_in_loops_and_sum_to_one(situation):
    (q, k, _, key_table, _), arguments = make_situation(situation, per_head=[*SITUATIONS].index(situation) % 2 == 0)
    for table in (key_table, None):
        expected = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.float64)
        of_query = weights_by_loops(q, k, key_table=table, **(arguments if table is not None else without(arguments)))
        for (b, h, i), of_keys in of_query.items():
            for j, weight in of_keys.items():
                expected[b, h, i, j] = weight
        actual = weights(q, k, key_table=table, **arguments)
        assert_equal(actual, expected)
        assert_equal(actual.sum(-1), torch.ones_like(actual[..., 0]))
        assert ((actual == 0) == (expected == 0)).all()  # hidden is hidden, not small


def without(arguments):
    return {name: argument for name, argument in arguments.items() if name != "labels"}


# What is chosen


def saved_sizes(form, inputs, **arguments):
    """Elements of each tensor that is kept for the backward pass."""
    sizes = []

    def keep(x):
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        gradients(form, inputs, torch.randn_like(inputs[0]), **arguments)
    return sizes


def test_weights_are_kept_for_short_sentences_and_computed_again_for_long_ones(monkeypatch):
    monkeypatch.setattr(attention, "LONG", 24)
    choices = [(23, "auto", True), (24, "auto", False), (25, "dense", True), (23, "blockwise", False)]
    for length, implementation, kept in choices:
        q, k, v, tables = make_inputs(length, length, 2)
        sizes = saved_sizes(partial(attend, implementation=implementation), [q, k, v, *tables.values()])
        assert (HEADS * length * length in sizes) == kept


@pytest.mark.parametrize("length", [255, 256])
def test_plain_attention_equals_the_reference_where_torch_has_a_fused_kernel(length, monkeypatch):
    # The kernel takes over at 256 keys; masks, caches and rows that see nothing must survive the change.
    calls, kernel = [], F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *tensors, **options: calls.append(1) or kernel(*tensors, **options)
    )
    q, k, v, _ = make_inputs(length, length, 0)
    padding = torch.arange(length) < length - 5
    for arguments in [{}, {"causal": True}, {"mask": padding}, {"mask": padding, "causal": True}]:
        assert_equal(attend(q, k, v, **arguments), reference(q, k, v, **arguments))
        few = attend(q[:, :, -3:], k, v, first_query=length - 3, **arguments)
        assert_equal(few, reference(q[:, :, -3:], k, v, first_query=length - 3, **arguments))
    assert len(calls) == (8 if length == 256 else 0)
    # As many queries as keys, and yet not from the first position on: each sees 7 keys more.
    late = {"causal": True, "first_query": 7}
    assert_equal(attend(q, k, v, **late), reference(q, k, v, **late))
    q.requires_grad_()
    hidden = attend(q, k, v, mask=torch.zeros(length, dtype=torch.bool))
    hidden.sum().backward()
    assert hidden.isfinite().all() and q.grad.isfinite().all()


@pytest.mark.parametrize("on_keys, on_values", [(True, False), (False, True)], ids=["keys", "values"])
def test_one_table_alone_counts_where_plain_attention_would_have_a_fused_kernel(on_keys, on_values):
    q, k, v, tables = make_inputs(3, 256, 4, on_keys=on_keys, on_values=on_values)
    arguments = {**tables, "first_query": 253}
    assert_equal(attend(q, k, v, **arguments), reference(q, k, v, **arguments))


@PASSES
def test_translating_first_and_training_afterwards_gives_the_same(form):
    # What is cached between calls must not be left over from inference mode, in which autograd refuses to reuse it.
    q, k, v, tables = make_inputs(19, 19, 3)
    with torch.inference_mode():
        translated = form(q, k, v, **tables)
    z, of_form = gradients(form, [q, k, v, *tables.values()], torch.ones_like(q))
    assert torch.equal(z, translated)
    _, expected = gradients(reference, [q, k, v, *tables.values()], torch.ones_like(q))
    torch.testing.assert_close(of_form, expected, rtol=1e-10, atol=1e-10)


WRONG = [
    ({"key_table": (5, 4)}, r"key_table: shape \[5, 4\] is neither \[R, 3\] \(shared by heads\) nor \[2, R, 3\]"),
    ({"value_table": (3, 5, 3)}, r"value_table: shape \[3, 5, 3\] is neither"),
    ({"value_table": (3,)}, r"value_table: shape \[3\] is neither"),
    ({"key_table": (1, 2, 5, 3)}, r"key_table: shape \[1, 2, 5, 3\] is neither"),
    ({"key_table": (4, 3)}, r"key_table: 4 rows are not 2k\+1, one for each distance from -k to k"),
    ({"value_table": (2, 6, 3)}, r"value_table: 6 rows are not 2k\+1"),
    ({"labels": (torch.int32, (4, 5))}, r"labels: torch.int32 \[4, 5\] is not int64 \[4, 5\] or \[2, 4, 5\]"),
    ({"labels": (torch.int64, (5, 4))}, r"labels: torch.int64 \[5, 4\] is not int64"),
    ({"labels": (torch.int64, (3, 4, 5))}, r"labels: torch.int64 \[3, 4, 5\] is not int64"),
    ({"labels": (torch.int64, (2, 2, 4, 5))}, r"labels: torch.int64 \[2, 2, 4, 5\] is not int64"),
]


@pytest.mark.parametrize("wrong, message", WRONG)
def test_what_has_the_wrong_shape_is_refused_with_the_rule(wrong, message):
    q, k, v, _ = make_inputs(4, 5, 0, batch=2)
    arguments = {
        name: torch.zeros(shape[1], dtype=shape[0]) if name == "labels" else torch.zeros(shape, dtype=q.dtype)
        for name, shape in wrong.items()
    }
    for implementation in ("auto", "dense", "blockwise", "composed", "triton"):
        with pytest.raises(ValueError, match=message):
            attend(q, k, v, implementation=implementation, **arguments)
    if "value_table" not in arguments:
        with pytest.raises(ValueError, match=message):
            weights(q, k, **arguments)


def test_triton_refuses_labels():
    q, k, v, tables = make_inputs(4, 4, 1)
    labels = relative_rows(4, 4, 1)
    with pytest.raises(
        ValueError, match="implementation: triton supports only vectors by clipped distance; choose auto"
    ):
        attend(q, k, v, labels=labels, implementation="triton", **tables)


# Precision and masked rows


@FORMS
@pytest.mark.parametrize(
    "dtype, on_keys, on_values",
    [
        (torch.float16, True, True),
        (torch.bfloat16, True, False),
        (torch.float32, False, False),
        (torch.float64, False, True),
    ],
    ids=str,
)
def test_fully_masked_rows_have_no_nan_forward_or_backward(form, dtype, on_keys, on_values):
    q, k, v, tables = make_inputs(5, 5, 2, batch=2, on_keys=on_keys, on_values=on_values)
    q, k, v = (x.to(dtype).requires_grad_() for x in (q, k, v))
    tables = {name: None if table is None else table.to(dtype).requires_grad_() for name, table in tables.items()}
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[1] = False  # a sentence of nothing but padding
    mask[0, 0, 3] = False  # and one query that sees nothing
    out = form(q, k, v, mask=mask, **tables)
    out.sum().backward()
    assert out.isfinite().all()
    for x in (q, k, v, *tables.values()):
        assert x is None or x.grad.isfinite().all()
    # The rows that do see something are untouched by the others.
    with torch.no_grad():
        alone = form(q[:1], k[:1], v[:1], **tables)
    seen = [0, 1, 2, 4]
    tolerance = {torch.float16: 0.01, torch.bfloat16: 0.05}.get(dtype, 1e-5)
    torch.testing.assert_close(out.detach()[0, :, seen], alone[0, :, seen], rtol=tolerance, atol=tolerance)


@FORMS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_rows_that_causality_and_padding_hide_together_are_finite(form, dtype):
    q, k, v, tables = make_inputs(6, 6, (1, 2), batch=2)
    mask = torch.arange(6) >= 3  # padding in front: the first three queries see nothing
    inputs = [x.to(dtype) for x in (q, k, v, *tables.values())]
    z, of_form = gradients(form, inputs, torch.ones_like(q).to(dtype), mask=mask, causal=True)
    assert all(x.isfinite().all() for x in (z, *of_form))
    labels = relative_rows(6, 6, 1)
    inputs[4] = inputs[3]
    z, of_form = gradients(form, inputs, torch.ones_like(q).to(dtype), mask=mask, causal=True, labels=labels)
    assert all(x.isfinite().all() for x in (z, *of_form))


def float64_and_bfloat16(length, clip_distance, *, per_head, width=32):
    """The same numbers (bfloat16 holds them exactly) in both precisions: [q, k, v, key table, value table]."""
    torch.manual_seed(length)
    rows = 2 * clip_distance + 1
    shapes = [(1, HEADS, length, width)] * 3 + [(HEADS, rows, width) if per_head else (rows, width)] * 2
    narrow = [torch.randn(shape).to(torch.bfloat16) for shape in shapes]
    return [x.double().requires_grad_() for x in narrow], [x.requires_grad_() for x in narrow]


def relative_error(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


@LAYOUTS
@pytest.mark.parametrize("length, clip_distance", [(8, 2), (64, 16), (256, 16)])
def test_bfloat16_is_within_rounding_forward_and_backward(per_head, length, clip_distance):
    # bfloat16 rounds to 8 bits, at most 0.4 % a number. Some six roundings in a row, partly averaged out: below 2 %.
    # The tables' gradients sum length^2 terms; in bfloat16 additions that would lose most of them (DESIGN: 90 %).
    exact, narrow = float64_and_bfloat16(length, clip_distance, per_head=per_head)
    cotangent = torch.randn_like(exact[0]).to(torch.bfloat16)
    z_right, right = gradients(reference, exact, cotangent.double())
    for name in ("composed", "dense", "blockwise"):
        z, of_form = gradients(FORM[name], narrow, cotangent)
        assert z.dtype == torch.bfloat16
        assert relative_error(z, z_right) < 0.02, name
        for thin, wide in zip(of_form, right, strict=True):
            assert relative_error(thin, wide) < 0.03, name


def test_bfloat16_keeps_the_tables_gradients_of_long_sentences(monkeypatch):
    # The paper's own way sums 512^2 pairs into 33 rows in bfloat16 and must be seen to fail here.
    monkeypatch.setattr(attention, "BLOCK_SCORES", 2**15)  # 64 queries in a block: 8 blocks
    algorithms = ["dense", "blockwise", "per_position"]
    sizes = {"length": 512, "clip_distance": 16, "d_head": 16}
    errors = table_gradient_errors(algorithms, "auto", **sizes, seed=1, device=torch.device("cpu"))
    for name in ("dense", "blockwise"):
        assert errors[name].keys < 0.01 and errors[name].values < 0.01
    assert errors["per_position"].keys > 0.1 and errors["per_position"].values > 0.1


@pytest.mark.parametrize("form", [form for name, form in FORM.items() if name != "reference"])
def test_float32_tables_serve_bfloat16_queries_as_under_autocast(form):
    _, inputs = float64_and_bfloat16(16, 4, per_head=True)
    mixed = [*inputs[:3], *(table.float() for table in inputs[3:])]
    cotangent = torch.randn_like(inputs[0])
    expected, of_narrow = gradients(form, inputs, cotangent)
    z, of_mixed = gradients(form, mixed, cotangent)
    assert z.dtype == torch.bfloat16
    assert relative_error(z, expected.double()) < 0.02  # a row minus the anchor's is rounded once, not three times
    assert [x.dtype for x in of_mixed] == [torch.bfloat16] * 3 + [torch.float32] * 2
    for actual, narrow in zip(of_mixed, of_narrow, strict=True):
        assert relative_error(actual, narrow.double()) < 0.03


@PASSES
def test_the_gradient_of_a_clipped_row_is_summed_in_float32_under_bfloat16(form):
    """P sums to 1, so the rows' gradients of w^V sum to that of z. The clipped row, which most pairs use, gets what the
    others leave of it: rounded to bfloat16 (half of 1/128) that would miss by more than all other roundings together.
    """
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 400, 4, dtype=torch.bfloat16)
    value_table = torch.zeros(3, 4)  # k = 1
    cotangent = (1 + torch.rand(q.shape) / 16).to(torch.bfloat16)  # about 412 a column
    _, (*_, of_table) = gradients(form, [q, k, v, None, value_table], cotangent)
    assert of_table.dtype == torch.float32
    exact = cotangent.double().sum((0, 1, 2))
    assert (of_table.double().sum(0) - exact).abs().max() < 1e-4 * exact.max()


@PASSES
def test_autocast_leaves_float32_inputs_in_float32(form):
    q, k, v, tables = make_inputs(9, 9, 2)
    inputs = [x.float() for x in (q, k, v, *tables.values())]
    outside = gradients(form, inputs, torch.ones_like(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16):
        inside = gradients(form, inputs, torch.ones_like(inputs[0]))
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["reference", "auto", "dense", "blockwise"])
@pytest.mark.parametrize(
    "batch, num_queries, num_keys, on_keys, on_values",
    [(0, 3, 3, True, True), (2, 0, 3, True, False), (2, 3, 0, True, True), (0, 0, 0, False, False)],
)
def test_empty_inputs_give_empty_outputs_and_gradients(name, on_keys, on_values, batch, num_queries, num_keys):
    """No sentence, no query or no key: z has the shape of q, zeros where there is nothing to sum over."""
    q, k, v, tables = make_inputs(num_queries, num_keys, 2, batch=batch, on_keys=on_keys, on_values=on_values)
    given = [x.requires_grad_() for x in (q, k, v, *(table for table in tables.values() if table is not None))]
    z = FORM[name](q, k, v, **tables, mask=torch.ones(batch, 1, 1, num_keys, dtype=torch.bool), causal=num_keys > 0)
    assert z.shape == q.shape
    assert not z.any()
    gradients = torch.autograd.grad(z.sum(), given, allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients)


@pytest.mark.parametrize("implementation", ["auto", "dense", "blockwise", "composed"])
def test_keys_and_values_of_one_sentence_serve_every_query(implementation):
    q, k, v, tables = make_inputs(5, 7, 2, batch=3)
    k, v = (x[:1].requires_grad_() for x in (k, v))
    z = attend(q, k, v, **tables, implementation=implementation)
    torch.testing.assert_close(z, reference(q, k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1), **tables))
    gradients = torch.autograd.grad(z.square().sum(), (k, v))
    assert [gradient.shape for gradient in gradients] == [k.shape, v.shape]


def test_the_reference_takes_float32_tables_beside_bfloat16_queries():
    q, k, v, tables = make_inputs(4, 4, 2)
    tables = {name: table.float() for name, table in tables.items()}
    z = reference(*(x.bfloat16() for x in (q, k, v)), **tables)
    assert z.dtype == torch.bfloat16
    torch.testing.assert_close(
        z.double(), reference(q, k, v, **{n: t.double() for n, t in tables.items()}), atol=0.05, rtol=0.05
    )
