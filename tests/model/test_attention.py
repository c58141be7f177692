"""Checked here: `reference` and `attend` against equations 3 and 4 by explicit Python loops in float64; gradients
against finite differences (gradcheck) and against `reference`; zero tables and k = 0 against torch's own attention;
`spread` and `collect` against loops and against each other (they are adjoint); masks, offsets and bfloat16.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from rpr.model.attention import attend, collect, reference, spread


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors this small gain nothing from threads, and on a busy machine wait for them (measured: 60 s, not 12)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


D_HEAD, HEADS = 3, 2
FORMS = pytest.mark.parametrize("form", [reference, attend], ids=["reference", "attend"])
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
    rows = 2 * clip_distance + 1
    return torch.randn((heads, rows, width) if per_head else (rows, width), dtype=torch.float64)


def make_inputs(num_queries, num_keys, clip_distance, *, batch=1, per_head=True, on_keys=True, on_values=True):
    """q, k, v [B, H, ., D] and the two tables (or None), float64."""
    torch.manual_seed(1000 * num_queries + 100 * num_keys + clip_distance)
    q = torch.randn(batch, HEADS, num_queries, D_HEAD, dtype=torch.float64)
    k, v = torch.randn(2, batch, HEADS, num_keys, D_HEAD, dtype=torch.float64)
    key_table = make_table(clip_distance, per_head) if on_keys else None
    value_table = make_table(clip_distance, per_head) if on_values else None
    return q, k, v, {"key_table": key_table, "value_table": value_table}


def table_row(table, head, distance):
    """w_clip(distance, k) of one head, as a list: the definition below equation 4."""
    rows = (table if table.dim() == 2 else table[head]).tolist()
    clip_distance = (len(rows) - 1) // 2
    return rows[max(-clip_distance, min(clip_distance, distance)) + clip_distance]


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def by_loops(q, k, v, *, key_table=None, value_table=None, mask=None, first_query=0):
    """Equations 3 and 4, one (sentence, head, query, key) at a time; a hidden key has no part in the softmax."""
    batch, heads, num_queries, width = q.shape
    num_keys = k.shape[2]
    q_list, k_list, v_list = q.tolist(), k.tolist(), v.tolist()
    visible = None if mask is None else mask.expand(batch, heads, num_queries, num_keys).tolist()
    distances = range(-(first_query + num_queries - 1), max(1, num_keys - first_query))
    a_key, a_value = (
        {(h, d): [0.0] * width if table is None else table_row(table, h, d) for h in range(heads) for d in distances}
        for table in (key_table, value_table)
    )
    out = torch.empty(q.shape, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(num_queries):
                keys = [j for j in range(num_keys) if visible is None or visible[b][h][i][j]]
                exponentials = {}
                for j in keys:
                    a = a_key[h, j - (first_query + i)]
                    key = [x + y for x, y in zip(k_list[b][h][j], a, strict=True)]
                    exponentials[j] = math.exp(dot(q_list[b][h][i], key) / math.sqrt(width))
                total = math.fsum(exponentials.values())
                z = [0.0] * width
                for j in keys:
                    a = a_value[h, j - (first_query + i)]
                    for c in range(width):
                        z[c] += exponentials[j] / total * (v_list[b][h][j][c] + a[c])
                out[b, h, i] = torch.tensor(z, dtype=torch.float64)
    return out


def assert_equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def causal_mask(num_queries, first_query, num_keys):
    return torch.arange(num_keys)[None, :] <= first_query + torch.arange(num_queries)[:, None]


# The equations


def test_two_positions_worked_by_hand():
    # q_1 = q_2 = 1, keys and values 0; d_z = 1, so no scaling. w^K = (0, 0, log 3): the key to the right counts three
    # times. w^V = (7, 0, 4). Query 1 looks at itself (1/4 of 0) and to the right (3/4 of 4); query 2 at both equally.
    q, zeros = torch.ones(1, 1, 2, 1, dtype=torch.float64), torch.zeros(1, 1, 2, 1, dtype=torch.float64)
    key_table = torch.tensor([[0.0], [0.0], [math.log(3)]], dtype=torch.float64)
    value_table = torch.tensor([[7.0], [0.0], [4.0]], dtype=torch.float64)
    for form in (reference, attend):
        out = form(q, zeros, zeros, key_table=key_table, value_table=value_table)
        assert out.flatten().tolist() == pytest.approx([3.0, 3.5], rel=1e-12)


@pytest.mark.parametrize("length", range(1, 41))
def test_both_forms_equal_equations_3_and_4_by_loops_at_every_length(length):
    for clip_distance in sorted({0, 1, 2, 16, length - 1, length + 3}):
        q, k, v, tables = make_inputs(length, length, clip_distance, per_head=length % 2 == 0)
        expected = by_loops(q, k, v, **tables)
        assert_equal(reference(q, k, v, **tables), expected)
        assert_equal(attend(q, k, v, **tables), expected)


@FORMS
@PLACES
@LAYOUTS
@pytest.mark.parametrize("length, clip_distance", [(1, 0), (1, 4), (5, 0), (5, 1), (5, 2), (5, 4), (5, 64), (23, 8)])
def test_every_combination_of_tables_equals_the_loops(form, on_keys, on_values, per_head, length, clip_distance):
    q, k, v, tables = make_inputs(
        length, length, clip_distance, batch=2, per_head=per_head, on_keys=on_keys, on_values=on_values
    )
    assert_equal(form(q, k, v, **tables), by_loops(q, k, v, **tables))


@FORMS
@PLACES
@LAYOUTS
@pytest.mark.parametrize("clip_distance", [0, 1, 3, 20])
def test_padding_masks_equal_the_loops_without_the_hidden_keys(form, on_keys, on_values, per_head, clip_distance):
    q, k, v, tables = make_inputs(7, 7, clip_distance, batch=3, per_head=per_head, on_keys=on_keys, on_values=on_values)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 1, 1, 0]]).bool()[:, None, None, :]
    assert_equal(form(q, k, v, mask=mask, **tables), by_loops(q, k, v, mask=mask, **tables))


@FORMS
@PLACES
@pytest.mark.parametrize("length", [1, 2, 9, 30])
@pytest.mark.parametrize("clip_distance", [0, 1, 4, 40])
def test_the_causal_mask_equals_the_loops_over_earlier_keys(form, on_keys, on_values, length, clip_distance):
    q, k, v, tables = make_inputs(length, length, clip_distance, on_keys=on_keys, on_values=on_values)
    mask = causal_mask(length, 0, length)
    assert_equal(form(q, k, v, mask=mask, **tables), by_loops(q, k, v, mask=mask, **tables))


@FORMS
@LAYOUTS
@pytest.mark.parametrize("num_queries, first_query, num_keys", OFFSETS)
@pytest.mark.parametrize("clip_distance", [0, 1, 3, 5, 64])
def test_queries_that_start_later_equal_the_loops(form, per_head, num_queries, first_query, num_keys, clip_distance):
    q, k, v, tables = make_inputs(num_queries, num_keys, clip_distance, batch=2, per_head=per_head)
    assert_equal(form(q, k, v, first_query=first_query, **tables), by_loops(q, k, v, first_query=first_query, **tables))


@FORMS
@pytest.mark.parametrize("num_queries, first_query", [(1, 5), (3, 4), (4, 1)])
@pytest.mark.parametrize("clip_distance", [0, 2, 16])
def test_later_queries_with_mask_are_the_last_rows_of_the_whole_sentence(form, num_queries, first_query, clip_distance):
    length = first_query + num_queries
    q, k, v, tables = make_inputs(length, length, clip_distance, batch=2)
    whole = form(q, k, v, mask=causal_mask(length, 0, length), **tables)
    part = form(
        q[:, :, first_query:],
        k,
        v,
        mask=causal_mask(num_queries, first_query, length),
        first_query=first_query,
        **tables,
    )
    assert_equal(part, whole[:, :, first_query:])


@FORMS
def test_a_mask_for_each_head_and_query_is_followed(form):
    q, k, v, tables = make_inputs(6, 6, 2, batch=2)
    mask = torch.rand(2, HEADS, 6, 6) < 0.5
    mask |= torch.eye(6).bool()  # every query sees something
    assert_equal(form(q, k, v, mask=mask, **tables), by_loops(q, k, v, mask=mask, **tables))


@FORMS
def test_a_hidden_key_has_no_influence_however_large(form):
    q, k, v, tables = make_inputs(5, 5, 2)
    mask = torch.tensor([True, True, False, True, True])
    quiet = form(q, k, v, mask=mask, **tables)
    k[:, :, 2], v[:, :, 2] = 1e4, 1e6
    assert torch.equal(form(q, k, v, mask=mask, **tables), quiet)


# The two special cases of k


@FORMS
@PLACES
@LAYOUTS
def test_zero_tables_equal_scaled_dot_product_attention(form, on_keys, on_values, per_head):
    q, k, v, tables = make_inputs(6, 6, 2, batch=2, per_head=per_head, on_keys=on_keys, on_values=on_values)
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
@LAYOUTS
@pytest.mark.parametrize("length", [1, 2, 6])
@pytest.mark.parametrize("beyond", [1, 9])
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


@pytest.mark.parametrize("length, clip_distance", [(4, 2), (4, 3), (4, 6), (1, 2)])
def test_only_the_rows_that_occur_get_a_gradient(length, clip_distance):
    q, k, v, tables = make_inputs(length, length, clip_distance)
    for table in tables.values():
        table.requires_grad_()
    (attend(q, k, v, **tables) ** 2).sum().backward()
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
@pytest.mark.parametrize("clip_distance", [0, 1, 2, 4, 9, 64])
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


@PLACES
@LAYOUTS
@pytest.mark.parametrize(
    "num_queries, first_query, num_keys, clip_distance", [(4, 0, 4, 0), (4, 0, 4, 1), (3, 0, 3, 5), (2, 3, 5, 2)]
)
def test_gradients_equal_finite_differences(
    on_keys, on_values, per_head, num_queries, first_query, num_keys, clip_distance
):
    q, k, v, tables = make_inputs(
        num_queries, num_keys, clip_distance, per_head=per_head, on_keys=on_keys, on_values=on_values
    )
    present = [name for name, table in tables.items() if table is not None]
    mask = causal_mask(num_queries, first_query, num_keys)

    def function(q, k, v, *some):
        return attend(q, k, v, mask=mask, first_query=first_query, **dict(zip(present, some, strict=True)))

    inputs = [x.requires_grad_() for x in (q, k, v, *(tables[name] for name in present))]
    assert torch.autograd.gradcheck(function, inputs)


@LAYOUTS
@pytest.mark.parametrize("length, clip_distance", [(9, 0), (9, 3), (30, 4), (30, 64)])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_both_forms_agree(per_head, length, clip_distance, masked):
    q, k, v, tables = make_inputs(length, length, clip_distance, batch=2, per_head=per_head)
    inputs = [x.requires_grad_() for x in (q, k, v, *tables.values())]
    mask = (torch.arange(length) < length - 3) if masked else None
    weight = torch.randn_like(q)
    one, two = (
        torch.autograd.grad((form(q, k, v, mask=mask, **tables) * weight).sum(), inputs) for form in (reference, attend)
    )
    for actual, expected in zip(two, one, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


# Precision and masked rows


@FORMS
@PLACES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_fully_masked_rows_have_no_nan_forward_or_backward(form, on_keys, on_values, dtype):
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
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.detach()[0, :, seen], alone[0, :, seen], rtol=tolerance, atol=tolerance)


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
    outs = []
    for form, (q, k, v, key_table, value_table) in ((reference, exact), (attend, narrow)):
        outs.append(form(q, k, v, key_table=key_table, value_table=value_table))
    assert outs[1].dtype == torch.bfloat16
    assert relative_error(outs[1], outs[0]) < 0.02
    cotangent = torch.randn_like(outs[0]).to(torch.bfloat16)
    outs[0].backward(cotangent.double())
    outs[1].backward(cotangent)
    for wide, thin in zip(exact, narrow, strict=True):
        assert relative_error(thin.grad, wide.grad) < 0.03


def test_float32_tables_serve_bfloat16_queries_as_under_autocast():
    _, (q, k, v, key_table, value_table) = float64_and_bfloat16(16, 4, per_head=True)
    expected = attend(q, k, v, key_table=key_table, value_table=value_table)
    mixed = attend(q, k, v, key_table=key_table.float(), value_table=value_table.float())
    assert mixed.dtype == torch.bfloat16
    assert torch.equal(mixed, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@PLACES
@pytest.mark.parametrize("mask", ["none", "causal", "with_empty_rows"])
def test_on_a_gpu_attend_equals_reference_on_the_cpu(on_keys, on_values, mask):
    q, k, v, tables = make_inputs(12, 12, 3, batch=2, on_keys=on_keys, on_values=on_values)
    hidden = None if mask == "none" else causal_mask(12, 0, 12).clone()
    rows = slice(None)
    if mask == "with_empty_rows":
        hidden[0] = False
        rows = slice(1, None)
    expected = reference(q, k, v, mask=hidden, **tables)
    there = {name: None if table is None else table.cuda() for name, table in tables.items()}
    out = attend(q.cuda(), k.cuda(), v.cuda(), mask=None if hidden is None else hidden.cuda(), **there).cpu()
    assert out.isfinite().all()
    torch.testing.assert_close(out[:, :, rows], expected[:, :, rows], rtol=1e-9, atol=1e-9)
