"""A small language model for packed rows: texts that share a row do not see one another.

    python examples/language_model.py   # compares texts in one row with the same texts alone

Attention is allowed where segment ids are equal, and only to what came before; positions count from
the beginning of each text; and no loss is taken where a text begins. So the model learns the same
from a packed row as from its texts one by one. `train_language_model.py` trains it.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gristmill as grain

jax.config.update("jax_platforms", "cpu")  # its arithmetic repeats bit by bit
VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 1024, 128, 96, 4, 1
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(8e-3))


def init_model(seed: int) -> dict[str, Any]:
    shapes = {"embed": (VOCABULARY, WIDTH), "place": (LENGTH, WIDTH)}
    for i in range(LAYERS):
        shapes |= {f"qkv{i}": (WIDTH, 3 * WIDTH), f"out{i}": (WIDTH, WIDTH)}
        shapes |= {f"up{i}": (WIDTH, 4 * WIDTH), f"down{i}": (4 * WIDTH, WIDTH)}
    rng = np.random.default_rng(seed)
    params = {name: jnp.float32(rng.normal(0, 0.05, shape)) for name, shape in shapes.items()}
    return {"params": params, "optimizer": OPTIMIZER.init(params)}


@jax.jit
def predict(
    params: dict[str, jax.Array], tokens: jax.Array, segments: jax.Array, positions: jax.Array
) -> jax.Array:
    """Logits of each next token, from the tokens before it in the same segment."""
    mask = (segments[:, :, None] == segments[:, None, :]) & jnp.tri(LENGTH, dtype=bool)
    x = params["embed"][tokens] + params["place"][positions]
    for i in range(LAYERS):
        qkv = (jax.nn.standardize(x) @ params[f"qkv{i}"]).reshape(*tokens.shape, 3, HEADS, -1)
        query, key, value = jnp.moveaxis(qkv, 2, 0)
        x += (
            jax.nn.dot_product_attention(query, key, value, mask=mask[:, None]).reshape(x.shape)
            @ params[f"out{i}"]
        )
        x += jax.nn.gelu(jax.nn.standardize(x) @ params[f"up{i}"]) @ params[f"down{i}"]
    return jax.nn.standardize(x) @ params["embed"].T


@jax.jit
def train_step(
    model: dict[str, Any], batch: dict[str, jax.Array]
) -> tuple[dict[str, Any], jax.Array]:
    tokens, positions = batch["tokens"], batch["tokens_positions"]

    def loss_of(params: dict[str, jax.Array]) -> jax.Array:
        logits = predict(params, tokens, batch["tokens_segment_ids"], positions)[:, :-1]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        # the first token of a text does not follow from the text before it
        return losses.mean(where=positions[:, 1:] > 0)

    loss, gradients = jax.value_and_grad(loss_of)(model["params"])
    updates, optimizer = OPTIMIZER.update(gradients, model["optimizer"])
    return {"params": optax.apply_updates(model["params"], updates), "optimizer": optimizer}, loss


def generate(
    params: dict[str, jax.Array], start: int, end: int, never: list[int], seed: int
) -> list[int]:
    """Draws the tokens that follow `start`, up to `end`, at temperature 0.6."""
    rng, tokens = np.random.default_rng(seed), np.full((1, LENGTH), start)
    for i in range(1, LENGTH):
        logits = np.array(
            predict(params, tokens, np.ones_like(tokens), np.arange(LENGTH)[None])[0, i - 1]
        )
        logits[never] = -np.inf
        tokens[0, i] = np.argmax(logits / 0.6 + rng.gumbel(size=VOCABULARY))
        if tokens[0, i] == end:
            return tokens[0, 1:i].tolist()
    return tokens[0, 1:].tolist()


def main() -> None:
    rng = np.random.default_rng(0)
    texts = [{"tokens": rng.integers(1, VOCABULARY, length)} for length in (50, 30, 40)]
    pack = grain.experimental.FirstFitPackIterDataset
    ds = grain.MapDataset.source(texts).to_iter_dataset()
    params = init_model(seed=0)["params"]

    def logits_of(ds: grain.IterDataset[Any]) -> jax.Array:
        row = next(iter(pack(ds, length_struct={"tokens": LENGTH}, num_packing_bins=1).batch(1)))
        return predict(params, row["tokens"], row["tokens_segment_ids"], row["tokens_positions"])[0]

    together = logits_of(ds)
    alone = [
        logits_of(grain.MapDataset.source([text]).to_iter_dataset())[: len(text["tokens"])]
        for text in texts
    ]
    difference = float(abs(together[: sum(map(len, alone))] - jnp.concatenate(alone)).max())
    print(
        f"{len(texts)} texts in one row, and alone: largest difference of logits {difference:.1e}"
    )
    sys.exit(0 if difference < 1e-4 else 1)


if __name__ == "__main__":
    main()
