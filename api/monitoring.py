"""The names of ``grain.monitoring``, without effect: ``gristmill.observe`` and the telemetry
measure here.
"""

from gristmill.core.inert import INERT

Bucketer = Counter = EventMetric = Metadata = Metric = Units = INERT
get_monitoring_root = setup_telemetry = set_debug_server_ports = INERT
record_autotune_node_throughput = record_autotune_optimization_latency = INERT
record_autotune_parameter = record_autotune_usl_coeff = INERT
record_bytes_read_and_latency = record_framework_type = INERT
