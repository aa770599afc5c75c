"""Names of bookkeeping keys that may travel in dictionary elements."""

INDEX = "_index"
RECORD_KEY = "_record_key"
DATASET_INDEX = "_dataset_index"
EPOCH = "_epoch"
SEED = "_seed"
RECORD = "_record"
META_FEATURES = frozenset({INDEX, RECORD_KEY, DATASET_INDEX, EPOCH, SEED, RECORD})
