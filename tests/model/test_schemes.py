"""Every position scheme against the equations of its paper, as loops over pairs in float64, forward and backward, in
every implementation of attention; known faults of other implementations; labels.
"""

import cmath
import math
from typing import get_args

import pytest
import torch

from rpr.model.layer_positions import GivenPositions, LayerPositions, positions_in_training, positions_of_layers
from rpr.model.positions import COLOURS, SCHEMES, Site, Tables, t5
from rpr.model.positions.alibi import slopes_of
from rpr.model.positions.scheme import Rotation
from rpr.model.rotation import angles, rotate
from rpr.model.vectors import LearnedPositions, SinusoidalPositions, sinusoids
from tests.model.attention_cases import FORMS, assert_same
from tests.model.scheme_variants import CAUSAL, VARIANTS, variant_scheme
from tests.shapes import choices, scheme
from tests.small_models import make_model

HEADS, WIDTH, LENGTH = 2, 8, 6
QUERIES = [0, 2, 5]  # those that are compared, and give gradients
SIDES = pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])


def site(causal, heads=HEADS, width=WIDTH, layers=2):
    return Site(num_layers=layers, num_heads=heads, d_model=heads * width, causal=causal)


def layer(variant, causal):
    """Positions of a layer with random parameters in float64."""
    torch.manual_seed(3)
    positions = LayerPositions(variant_scheme(variant), site(causal)).double()
    for parameter in positions.parameters():
        torch.nn.init.normal_(parameter, mean=0.5, std=0.6)
    return positions


def inputs():
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(1, HEADS, LENGTH, WIDTH, generator=draw, dtype=torch.float64) for _ in range(4)]


# --- the papers' equations, as loops


def rotated(vector, position, variant, side):
    """Complex multiplication of each pair (Su et al. 2021, equation 34), of a query (1) or a key (-1)."""
    given = variant_scheme(variant)
    width = int(given.rotated_share * WIDTH)
    base = given.base
    if given.scaling == "ntk":
        base *= given.scaling_factor ** (width / (width - 2))
    if given.scaling == "linear":
        position = position / given.scaling_factor
    out = list(vector)
    for pair in range(width // 2):
        first, second = (2 * pair, 2 * pair + 1) if given.layout == "interleaved" else (pair, pair + width // 2)
        frequency, size = base ** (-2 * pair / width), 1
        if given.scaling == "yarn":
            ends = [width * math.log(given.trained_length / (2 * math.pi * n)) / (2 * math.log(base)) for n in (32, 1)]
            low, high = max(0, math.floor(ends[0])), min(width - 1, math.ceil(ends[1]))
            assert low < 2 < high  # a pair between the two kinds
            scaled = min(1, max(0, (pair - low) / (high - low)))
            frequency = scaled * frequency / given.scaling_factor + (1 - scaled) * frequency
            size = 0.1 * math.log(given.scaling_factor) + 1
        if given.scaling == "llama3":  # as transformers: by wavelengths
            wavelength, length = 2 * math.pi / frequency, given.trained_length
            smooth = (length / wavelength - 1) / (4 - 1)
            between = (1 - smooth) * frequency / given.scaling_factor + smooth * frequency
            frequency = (
                between
                if length / 4 <= wavelength <= length
                else (frequency if wavelength < length / 4 else frequency / given.scaling_factor)
            )
        if given.scaling == "longrope":
            frequency /= given.long_factors[pair]
            size = math.sqrt(1 + math.log(given.scaling_factor) / math.log(given.trained_length))
        if pair >= given.proportion * width // 2:
            frequency = 0
        if given.scheme == "xpos":
            size = ((2 * pair / width + given.gamma) / (1 + given.gamma)) ** (side * position / given.scale_base)
        angle = size * cmath.exp(1j * position * frequency)
        out[first] = vector[first] * angle.real - vector[second] * angle.imag
        out[second] = vector[first] * angle.imag + vector[second] * angle.real
    return torch.stack(out)


def selective_angles(given, learned, x, head, i):
    """tau times the sum over l <= i of the gate times the convolution, [W] (arXiv 2511.17388; the authors' module)."""
    pairs = range(head * WIDTH // 2, (head + 1) * WIDTH // 2)
    unit = [torch.cat([part / part.norm() for part in row.split(WIDTH)]) for row in x]
    increments = [learned["up"][pair] @ (learned["down"] @ row) for row in unit for pair in pairs]
    increments = torch.stack(increments).view(len(x), -1)
    total = 0
    for at in range(i + 1):
        kernel = learned["kernel"][[*pairs]]
        c = sum(kernel[:, 3 - back] * increments[at - back] for back in range(4) if at >= back)
        total = total + c * (
            torch.sigmoid(learned["gate"][head] @ unit[at] + learned["gate_bias"][head]) if given.gate else 1
        )
    return total * torch.tensor([given.base ** (-2 * pair / WIDTH) for pair in range(WIDTH // 2)], dtype=x.dtype)


def t5_bucket(distance, buckets, max_distance, bidirectional):
    """As in the authors' code, with distance = key - query."""
    bucket = 0
    if bidirectional:
        buckets //= 2
        bucket = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return bucket + distance
    logarithm = math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact)
    return bucket + min(exact + int(logarithm + 1e-12), buckets - 1)


def alibi_bias(head, distance, form, causal):
    slope = 2 ** (-8 * (head + 1) / HEADS)
    if causal or form == "symmetric":
        return -slope * abs(distance)
    if form == "asymmetric":
        return -slope * abs(distance) + (0.5 * slope if distance < 0 else 0)
    slope = 2 ** (-8 * (head % (HEADS // 2) + 1) / (HEADS // 2))
    hidden = distance > 0 if head < HEADS // 2 else distance < 0
    return -math.inf if hidden else -slope * abs(distance)


def score(variant, learned, x, q, k, head, i, j, causal):
    """The scaled score of one query and one key, of a layer with input x."""
    kind, given, root = variant.partition(" ")[0], variant_scheme(variant), math.sqrt(WIDTH)
    q = q * (1 + given.query_log_scale * math.log(max((i + 1) / given.query_log_floor, 1)))
    if kind in ("relative", "relative_keys"):
        row = max(-given.clip_distance, min(given.clip_distance, j - i)) + given.clip_distance
        table = learned["keys"][head] if given.tables == "per_head" else learned["keys"]
        return q @ (k + table[row]) / root
    if kind == "pope":
        softplus, delta = torch.nn.functional.softplus, learned["delta"][head]
        angle = [(j - i) * given.base ** (-d / WIDTH) + delta[d] for d in range(WIDTH)]
        return sum(softplus(q[d]) * softplus(k[d]) * torch.cos(angle[d]) for d in range(WIDTH)) / root
    if kind == "selective_rope":
        phi = [selective_angles(given, learned, x, head, at) for at in (i, j)]
        pairs = (range(WIDTH // 2), range(WIDTH // 2, WIDTH))
        first, second = (torch.complex(*(part[[*half]] for half in pairs)) for part in (q, k))
        turned = (z * torch.polar(torch.ones_like(angle), angle) for z, angle in zip((first, second), phi, strict=True))
        one, other = turned
        return (one * other.conj()).real.sum() / root
    if kind in ("rope", "xpos"):
        return rotated(q, i, variant, 1) @ rotated(k, j, variant, -1) / root
    if kind == "t5":
        bucket = t5_bucket(j - i, given.buckets, given.max_distance, not causal)
        return q @ k / (root if given.scaled_queries else 1) + learned["buckets"][head, bucket]
    if kind == "alibi":
        return q @ k / root + alibi_bias(head, j - i, given.encoder_form, causal)
    if kind == "kerple":
        p, a = (learned[name][head, 0] for name in ("p", "a"))
        p, a = p + (p.detach().clamp(min=0.01) - p.detach()), a + (a.detach().clamp(min=0.01) - a.detach())
        distance = abs(i - j)
        if given.form == "log":
            return q @ k / root - p * torch.log(1 + a * distance)
        return q @ k / root - (a * distance ** (p + (p.detach().clamp(max=2) - p.detach())) if distance else 0)
    if kind == "clipped_scalars":
        row = max(-given.clip_distance, min(given.clip_distance, j - i)) + given.clip_distance
        key = k + learned["keys"][row] if given.keys else k
        return (q @ key + learned["scalars"][row]) / root
    if kind == "fire":

        def psi(distance):
            return torch.log(learned["c"].abs() * distance + 1)

        longest = torch.maximum(torch.tensor(float(i)), abs(given.initial_threshold * learned["threshold"]))
        inner = torch.relu(learned["inner_weight"] * psi(i - j) / psi(longest) + learned["inner_bias"])
        return q @ k / root + learned["outer_weight"][head] @ inner
    if kind == "fox":
        gates = (learned["gate"][head] @ x[at] + learned["bias"][head] for at in range(j + 1, i + 1))
        return q @ k / root + sum(torch.sigmoid(gate).log() for gate in gates)
    if kind == "relative_logits":
        r = learned["w_r"][head * given.rank : (head + 1) * given.rank] @ x[i]
        before = given.extent - 1
        if given.clip_queries is not None:

            def clip(vector, longest):
                return vector * min(1, longest / (vector.norm() + 1e-6))

            growth = 1 + given.query_log_scale * math.log(max((i + 1) / given.query_log_floor, 1))
            q = growth * clip(q / growth * learned["q_scale"][head], given.clip_queries)
            r, k = growth * clip(r * learned["r_scale"][head], given.clip_logits), clip(k, given.clip_queries)
        return q @ k / root + (r @ learned["p"][before + j - i] if abs(i - j) < given.extent else 0)
    assert kind == "transformer_xl"
    d_model = HEADS * WIDTH
    half = [10_000 ** (-2 * pair / d_model) for pair in range(d_model // 2)]
    r = torch.tensor([math.sin((i - j) * f) for f in half] + [math.cos((i - j) * f) for f in half], dtype=torch.float64)
    t = r @ learned["w_r"][head]
    u, v = learned["u"][head], learned["v"][head]
    return (q @ k + q @ t + u @ k + v @ t) / root


def cope(learned, q, keys):
    """Scores of one query, whose last key is its own (Golovneva et al. 2024, equations 3 to 5)."""
    scores = [q @ k / math.sqrt(WIDTH) for k in keys]
    last = len(learned["vectors"]) - 1
    counts = [sum(torch.sigmoid(one) for one in scores[j:]).clamp(max=last) for j in range(len(keys))]
    found = []
    for plain, count in zip(scores, counts, strict=True):
        low = math.floor(count.detach())
        vector = learned["vectors"][low] * (low + 1 - count) + learned["vectors"][min(low + 1, last)] * (count - low)
        found.append(plain + q @ vector / math.sqrt(WIDTH))
    return torch.stack(found)


def by_loops(variant, learned, x, q, k, v, causal, at=range(LENGTH)):
    """At these positions; x has one row for each position from 0 on."""
    z = torch.zeros_like(q)
    for h in range(HEADS):
        for i in QUERIES:
            keys = range(i + 1) if causal else range(LENGTH)
            if variant == "cope":
                scores = cope(learned, q[0, h, i], k[0, h, : i + 1])
            else:
                each = (score(variant, learned, x[0], q[0, h, i], k[0, h, j], h, at[i], at[j], causal) for j in keys)
                scores = torch.stack([*each])
            values = v[0, h, : len(keys)]
            if "values" in learned:
                clip = variant_scheme(variant).clip_distance
                values = values + learned["values"][h][[max(-clip, min(clip, at[j] - at[i])) + clip for j in keys]]
            z[0, h, i] = scores.softmax(0) @ values
    return z[:, :, QUERIES]


def by_layer(positions, x, q, k, v, causal, attention, at=None):
    given = positions.inputs(x, q, k, v, at)._replace(causal=causal)
    return attention(**given._asdict())[:, :, QUERIES]


@pytest.mark.parametrize("variant", VARIANTS)
@SIDES
def test_all_implementations_match_the_papers_equations(variant, causal):
    if not causal and variant_scheme(variant).scheme in CAUSAL:
        assert "causal attention only" in variant_scheme(variant).problem(site(causal))
        return
    positions = layer(variant, causal)
    *qkv, cotangent = inputs()
    x = torch.randn(1, LENGTH, HEADS * WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def results(compute):
        leaves = [part.clone().requires_grad_() for part in (x, *qkv)]
        z = compute(*leaves)
        parameters = dict(positions.named_parameters())
        found = torch.autograd.grad(z, [*leaves, *parameters.values()], cotangent[:, :, QUERIES], allow_unused=True)
        return [z.detach(), *(torch.zeros(()) if gradient is None else gradient for gradient in found)]

    learned = dict(positions.named_parameters())
    expected = results(lambda *xqkv: by_loops(variant, learned, *xqkv, causal))
    forms = {"auto": FORMS["auto"]} if " " in variant else FORMS  # which get the same kinds of inputs
    for name, attention in forms.items():
        found = results(lambda *xqkv, attention=attention: by_layer(positions, *xqkv, causal, attention))
        assert_same(found, expected, name)


@pytest.mark.parametrize("variant", ["relative", "rope log", "t5", "alibi", "transformer_xl", "relative_logits"])
@SIDES
def test_given_positions_are_those_of_the_equations(variant, causal):
    at = [0, 1, 3, 4, 8, 12]
    positions = layer(variant, causal)
    learned, (*qkv, _) = dict(positions.named_parameters()), inputs()
    x = torch.randn(1, at[-1] + 1, HEADS * WIDTH, dtype=torch.float64)
    expected = by_loops(variant, learned, x, *qkv, causal, at)
    given = GivenPositions(torch.tensor(at), 20)
    for name in ("auto", "dense", "blockwise", "composed"):
        found = by_layer(positions, x[:, at], *qkv, causal, FORMS[name], given)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_positions_in_training_are_a_sorted_random_subset():
    torch.manual_seed(0)
    draws = [positions_in_training(scheme("rope", random_positions=9), 4, torch.device("cpu")) for _ in range(200)]
    assert all((one.positions_P.diff() > 0).all() and one.max_distance == 8 for one in draws)
    assert {*torch.cat([one.positions_P for one in draws]).tolist()} == {*range(9)}
    full = positions_in_training(scheme("rope", random_positions=9), 12, torch.device("cpu"))
    assert full.positions_P.tolist() == [*range(12)]
    assert positions_in_training(scheme("rope"), 4, torch.device("cpu")) is None
    bias = Tables(bias=torch.zeros(2, 17))
    assert draws[0].rows(bias).shape == (4, 4)
    assert full.rows(bias) is None, "any kernel knows the distances"


def test_learned_positions_start_with_the_standard_deviation_given():
    for given, expected in ((None, 0.25), (1.0, 1.0)):
        positions = scheme("learned", max_positions=999, initial_std=given)
        assert positions.embeddings(16).weight_LM.std().item() == pytest.approx(expected, rel=0.02)
        assert positions.label.endswith("initial std 1") == (given is not None)
    assert scheme("rope", initial_std=1.0).identity() == scheme("rope").identity()


@pytest.mark.parametrize("choice", ["absolute", "learned", "shape", "centred"])
def test_embeddings_of_given_positions_are_their_rows(choice):
    module = scheme(choice).embeddings(8).eval()
    pieces, at = torch.zeros(2, 3, dtype=torch.int64), torch.tensor([1, 4, 5])
    torch.testing.assert_close(module(at, pieces), module(0, torch.zeros(2, 9, dtype=torch.int64))[at])


def test_rotation_leaves_the_gradient_that_it_receives_as_it_was():
    """Autograd may pass the same tensor to several functions: here to the rotation and to y."""
    x, y = (torch.randn(1, 1, 3, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(2))
    cos, sin = angles(torch.arange(3), Rotation(WIDTH, False, 10_000.0, 1.0), x.dtype)
    gradient = torch.randn_like(x)
    given = gradient.clone()
    torch.autograd.backward(rotate(x, cos, sin, interleaved=False) + y, gradient)
    assert torch.equal(gradient, given) and torch.equal(y.grad, given)
    assert torch.autograd.gradcheck(lambda x: rotate(x, cos, sin, interleaved=True), x)


# --- known faults of other implementations


@pytest.mark.parametrize("causal", [False, True])
def test_t5_buckets_match_the_authors_formula(causal):
    """Rounding could move the boundaries at 16, 32 and 64."""
    found = t5._bucket_of_rows(32 if causal else 16, 128, causal, 300, torch.device("cpu")).tolist()
    assert found == [t5_bucket(d, 32, 128, not causal) for d in range(-300, 301)]
    assert max(found[:300]) == (31 if causal else 15)


def test_t5_tables_are_shared_by_layers_but_not_by_stacks():
    encoder, decoder = (positions_of_layers(scheme("t5"), site(causal)) for causal in (False, True))
    assert encoder[0] is encoder[1]
    assert encoder[0] is not decoder[0]
    by_layer = positions_of_layers(scheme("t5", one_table=False), site(False))
    assert by_layer[0] is not by_layer[1]
    lower, above, third, fourth = positions_of_layers(scheme("pattern", layers=["t5", "none"]), site(False, layers=4))
    assert lower is third and above is None is fourth  # shared by the layers of one entry


@pytest.mark.parametrize("heads, expected", [
    (12, [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    (3, [2**-4, 2**-8, 2**-2]),
    (1, [2**-8]),
])  # fmt: skip
def test_alibi_slopes_for_any_number_of_heads(heads, expected):
    assert slopes_of(heads) == pytest.approx(expected)


def test_kerple_parameters_start_and_stay_in_the_authors_range():
    torch.manual_seed(0)
    positions = LayerPositions(scheme("kerple"), site(False, heads=500))
    assert 0 <= positions.p.min() < 0.02 and 1.98 < positions.p.max() <= 2
    assert 0 <= positions.a.min() < 0.01 and 0.99 < positions.a.max() <= 1
    positions.p.data.fill_(-3.0)
    bias = positions.at(4, torch.device("cpu")).bias
    assert (bias[:, :4].diff() > 0).all()  # still decreases with the distance


def test_shape_offset_is_random_in_training_and_fixed_in_evaluation():
    """The authors' code evaluates at offset 500, not 0."""
    positions = scheme("shape", max_offset=9, evaluation_offset=5).embeddings(8)
    pieces = torch.zeros(200, 3, dtype=torch.int64)
    table = sinusoids(12, 8)
    torch.manual_seed(0)
    drawn = positions.train()(0, pieces)
    offsets = [next(o for o in range(10) if torch.equal(row, table[o : o + 3])) for row in drawn]
    assert set(offsets) == set(range(10))
    torch.manual_seed(0)
    assert torch.equal(positions(0, pieces), drawn)
    torch.testing.assert_close(positions.eval()(0, pieces), table[5:8])
    torch.testing.assert_close(positions.eval()(2, pieces), sinusoids(20, 8)[7:10])


def test_centred_sinusoids_have_zero_mean_over_the_first_positions():
    positions = scheme("centred", mean_over=40).embeddings(8)
    found, plain = (module(0, torch.zeros(1, 300, dtype=torch.int64)) for module in (positions, SinusoidalPositions(8)))
    torch.testing.assert_close(found[:40].mean(dim=0), torch.zeros(8))
    torch.testing.assert_close(found - found[0], plain - plain[0])


# --- vectors added to the embeddings


def test_sinusoids_match_hand_computation():
    # Three frequencies, geometric from 1 to 1 / 10,000: 1, 0.01, 0.0001. Sines first, then cosines.
    table = sinusoids(6, 6)
    assert (table.dtype, table.shape) == (torch.float32, (6, 6))
    assert table[0].tolist() == [0, 0, 0, 1, 1, 1]
    by_hand = [-0.95892427, 0.04997917, 0.00049999998, 0.28366219, 0.99875026, 0.99999988]  # of 5, 0.05, 0.0005
    assert table[5].tolist() == pytest.approx(by_hand, rel=1e-6)
    assert sinusoids(4, 2)[3].tolist() == pytest.approx([math.sin(3), math.cos(3)], rel=1e-6)  # one frequency, 1


def test_sinusoidal_positions_are_table_rows_and_have_no_state():
    positions = SinusoidalPositions(8)
    for first, length in [(0, 5), (3, 4), (255, 1), (255, 2), (250, 700), (5000, 3)]:
        assert torch.equal(positions(first, torch.zeros(1, length)), sinusoids(first + length, 8)[first:])
    assert [*positions.parameters(), *positions.buffers(), *positions.state_dict()] == []


def test_sinusoids_cached_in_inference_mode_can_be_used_in_training():
    positions = SinusoidalPositions(8)
    with torch.inference_mode():
        positions(1000, torch.zeros(1, 2))
    x = torch.ones(2, 8, requires_grad=True)
    (x * positions(1000, torch.zeros(1, 2))).sum().backward()  # an inference tensor cannot be saved for backward
    assert torch.equal(x.grad, sinusoids(1002, 8)[1000:])


def test_learned_positions_beyond_the_table_use_its_last_row():
    positions = LearnedPositions(5, 3)
    weight = positions.weight_LM
    for first, rows in [(0, [0, 1, 2, 3, 4]), (1, [1, 2]), (3, [3, 4, 4, 4]), (100, [4, 4])]:
        assert torch.equal(positions(first, torch.zeros(1, len(rows))), weight[rows])
    positions(2, torch.zeros(1, 4)).sum().backward()  # positions 2, 3, 4, 5: the last two share row 4
    assert weight.grad[:, 0].tolist() == [0, 0, 1, 1, 2]


# --- labels


def test_choices_and_schemes_match_and_have_own_labels_and_colours():
    found = {choice: scheme(choice) for choice in choices()}
    assert {one.scheme for one in found.values()} == set(SCHEMES)
    for choice, one in found.items():
        assert one.kind in (choice, "pattern")
        assert COLOURS[one.kind].startswith("#")
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert len({one.label for one in found.values()}) == len(found)


OTHER_VALUES = {
    "base": 500.0, "rotated_share": 0.5, "buckets": 16, "proportion": 0.5, "random_positions": 2048,
    "trained_length": 99, "initial_std": 1.0, "window": 4, "clip_logits": 8.0, "clip_queries": 9.0,
    "long_factors": (2.0,),
}  # fmt: skip


def others(kind, name, value):
    """Other values of a setting: of a choice all, of a number one."""
    literals = [one for one in get_args(kind.model_fields[name].annotation) if one != value]
    if literals and all(isinstance(one, str) for one in literals):
        return literals
    return [OTHER_VALUES[name] if name in OTHER_VALUES else not value if isinstance(value, bool) else value + 1]


@pytest.mark.parametrize("choice", [name for name in choices() if scheme(name).scheme not in ("vectors", "pattern")])
def test_label_shows_every_setting_that_is_not_the_default_and_has_an_effect(choice):
    default = scheme(choice)
    fixed = {"name", "scheme", "max_positions", *(["absolute"] if choice in ("shape", "centred") else [])}
    for name in set(type(default).model_fields) - fixed:
        for value in others(type(default), name, getattr(default, name)):
            other = scheme(choice, **{name: value})
            assert (other.label == default.label) == (other.identity() == default.identity()), name


ORDER = {
    **{name: variant_scheme(name) for name in VARIANTS if name.split()[0] not in CAUSAL},
    **{name: scheme(name) for name in ("none", "learned", "absolute", "centred", "rope_none", "relative_rope")},
    "k = 0": scheme("relative", clip_distance=0),
    "k = 0, shared": scheme("relative_keys", clip_distance=0, tables="shared_by_heads"),
    "k = 0 and sinusoids": scheme("absolute_and_relative", clip_distance=0),
    "scalars of k = 0": scheme("clipped_scalars", clip_distance=0),
    "rope that rotates nothing": scheme("rope", proportion=0),
    "logits of one distance": scheme("relative_logits", extent=1),
}


@pytest.mark.parametrize("name", ORDER)
def test_an_encoder_without_order_translates_permuted_tokens_alike(name):
    """`ordered` decides which runs a report calls not learned, and a warning before training."""
    model = make_model(encoder_positions=ORDER[name], decoder_positions=scheme("none"))
    tokens, permuted = torch.tensor([[11, 12, 13, 14, 15, 3]]), torch.tensor([[13, 11, 15, 14, 12, 3]])
    target = torch.tensor([[7, 8, 9]])
    with torch.inference_mode():
        difference = (model(tokens, target) - model(permuted, target)).abs().max()
    assert (difference > 1e-4) == ORDER[name].ordered, difference
