"""Keras as it is, with datasets of ours: its own tests that ask for Grain, and cases that they
lack.

``make clients`` installs it without Grain in ``.peers/clients``, ``make peers`` beside PyTorch in
``.peers/torch``; ``GRISTMILL_PEER_CLIENTS`` and ``GRISTMILL_PEER_TORCH`` name others.
"""

import os
import subprocess
from pathlib import Path

import pytest
from programs import outcome

PEERS = Path(__file__).parents[2] / ".peers"
CLIENTS = Path(os.environ.get("GRISTMILL_PEER_CLIENTS", PEERS / "clients")) / "bin/python"
TORCH = Path(os.environ.get("GRISTMILL_PEER_TORCH", PEERS / "torch")) / "bin/python"
# Its NumPy backend takes batches as the one of JAX does, and cannot train.
HERE = {"jax": CLIENTS, "tensorflow": CLIENTS, "torch": TORCH}
pytestmark = pytest.mark.slow
on_every_backend = pytest.mark.parametrize("backend", HERE)


@pytest.fixture(autouse=True)
def environment(request, monkeypatch):
    backend = request.node.callspec.params["backend"]
    if not HERE[backend].exists():
        pytest.skip(f"Keras is not installed at {HERE[backend]} (run `make clients peers`)")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")


def check(tmp_path, backend, program):
    process = outcome(tmp_path, program, python=HERE[backend])
    assert process.returncode == 0, process.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["jax"])
def test_its_own_tests(backend, tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    folder = next((CLIENTS.parents[1] / "lib").glob("python3*")) / "site-packages/keras/src"
    files = [
        *folder.glob("utils/*_dataset_utils_test.py"),
        *folder.glob("layers/preprocessing/**/*_test.py"),
    ]
    files = [file for file in files if "grain" in file.read_text()]
    files += [folder / "trainers/trainer_test.py"]
    command = [
        CLIENTS,
        "-m",
        "gristmill",
        "run-as-grain",
        "-m",
        "pytest",
        "-c",
        "pytest.ini",
        "-q",
        "-k",
        "grain",
        *files,
    ]
    process = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert process.returncode == 0 and "\n42 passed," in process.stdout, process.stdout[-5000:]


@on_every_backend
def test_training_on_datasets_is_training_on_arrays(backend, tmp_path):
    program = """
        from pathlib import Path
        import numpy as np
        import gristmill as grain
        import keras

        x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
        y = x.sum(1, keepdims=True)

        class Pairs:
            def __len__(self):
                return 32

            def __getitem__(self, i):
                return x[i], y[i]

        batches = grain.MapDataset.source(Pairs()).batch(8)
        sampler = grain.samplers.SequentialSampler(32)
        loader = grain.DataLoader(
            data_source=Pairs(), sampler=sampler, operations=[grain.transforms.Batch(8)]
        )
        datasets = [batches, batches.to_iter_dataset(), loader]

        def outcomes(validation, *data, **kwargs):
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            lost = []
            for more in ({"validation_data": validation}, {"steps_per_epoch": 2}):
                history = model.fit(*data, epochs=2, verbose=0, **more, **kwargs).history
                lost += [loss for losses in history.values() for loss in losses]
            lost.append(model.evaluate(*validation if len(data) > 1 else data, verbose=0))
            return [*map(float, lost), *model.predict(data[0], verbose=0)[:, 0].tolist()]

        expected = outcomes((x, y), x, y, batch_size=8, shuffle=False)
        assert len(expected) == 32 + 1 + 6 and len(set(expected)) == len(expected)
        for dataset in datasets:
            np.testing.assert_allclose(outcomes(dataset, dataset), expected, rtol=1e-5)

        def windows(batch_size=None, **kwargs):
            times = np.arange(9.0)
            return keras.utils.timeseries_dataset_from_array(
                times, 2 * times, 3, format="grain", batch_size=batch_size, **kwargs
            )

        assert isinstance(windows(), grain.IterDataset)
        assert [int(x[0]) for x, y in windows(shuffle=True, seed=5)] == [0, 6, 5, 1, 2, 3, 4]
        x, y = next(iter(windows(batch_size=2)))
        assert type(x) is type(keras.ops.ones(1)) and np.asarray(x).tolist() == [
            [0, 1, 2],
            [1, 2, 3],
        ]

        folder = Path(__file__).parent / "texts"
        for label in "ab":
            (folder / label).mkdir(parents=True)
            for i in range(4):
                (folder / label / f"{i}.txt").write_text(f"{label}{i}")
        kwargs = {"validation_split": 0.25, "seed": 3, "verbose": False, "format": "grain"}
        parts = keras.utils.text_dataset_from_directory(
            folder, subset="both", batch_size=3, **kwargs
        )
        found = [
            [
                (np.array(texts).astype("S").tolist(), np.asarray(labels).tolist())
                for texts, labels in p
            ]
            for p in parts
        ]
        training = [([b"a3", b"b2", b"b1"], [0, 1, 1]), ([b"b3", b"b0", b"a1"], [1, 1, 0])]
        assert found == [training, [([b"a0", b"a2"], [0, 0])]], found

        if keras.backend.backend() == "torch":
            numbers = grain.MapDataset.range(10)
            left, right = keras.utils.split_dataset(
                numbers, left_size=0.8, preferred_backend="torch"
            )
            assert sorted([*left, *right]) == list(range(10)) and (len(left), len(right)) == (8, 2)
    """
    check(tmp_path, backend, program)


@pytest.mark.parametrize("backend", ["jax"])
def test_its_layers_compute_on_the_cpu_in_a_pipeline(backend, tmp_path):
    program = """
        import gristmill
        gristmill.install_as_grain()
        import grain
        import jax
        import keras

        layer = keras.layers.Rescaling(0.5)

        class Where(grain.transforms.Map):
            def map(self, x):
                with jax.default_device(jax.devices("cpu")[1]):
                    return layer(x).device.id

        if __name__ == "__main__":
            x, where = [[1.0], [2.0]], Where()
            ds = grain.MapDataset.source(x)
            sampler = grain.samplers.SequentialSampler(2)
            workers = grain.MultiprocessingOptions(num_workers=1)
            for pipeline in (
                ds.map(where),
                ds.map(where).to_iter_dataset(),
                ds.to_iter_dataset().map(lambda x: where.map(x)),
                ds.seed(0).random_map(lambda x, rng: where.map(x)),
                ds.map(where).to_iter_dataset().mp_prefetch(workers),
                grain.DataLoader(
                    data_source=x, sampler=sampler, operations=[where], worker_count=1
                ),
            ):
                assert list(pipeline) == [0, 0], pipeline
            assert where.map(x[0]) == 1  # and nowhere else
    """
    check(tmp_path, backend, program)
