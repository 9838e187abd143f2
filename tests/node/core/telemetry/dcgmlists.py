"""The lists of fields that dcgm-exporter ships, as facts: field, type and help of each row, blanks and all.

Source: NVIDIA/dcgm-exporter, folder etc. The commit of each list is named; 7ad5832 is the release 4.6.0-4.8.3.
"""

CLOCKS_TO_MEMORY = """\
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_MEM_CLOCK, gauge, Memory clock frequency (in MHz).
DCGM_FI_DEV_MEMORY_TEMP, gauge, Memory temperature (in C).
DCGM_FI_DEV_GPU_TEMP,    gauge, GPU temperature (in C).
DCGM_FI_DEV_POWER_USAGE,              gauge, Power draw (in W).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Total energy consumption since boot (in mJ).
DCGM_FI_DEV_PCIE_REPLAY_COUNTER, counter, Total number of PCIe retries.
DCGM_FI_DEV_GPU_UTIL,      gauge, GPU utilization (in %).
DCGM_FI_DEV_MEM_COPY_UTIL, gauge, Memory utilization (in %).
DCGM_FI_DEV_ENC_UTIL,      gauge, Encoder utilization (in %).
DCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).
DCGM_FI_DEV_XID_ERRORS,              gauge,   Value of the last XID error encountered.
DCGM_FI_DEV_FB_FREE, gauge, Framebuffer memory free (in MiB).
DCGM_FI_DEV_FB_USED, gauge, Framebuffer memory used (in MiB).
"""

RESERVED = "DCGM_FI_DEV_FB_RESERVED, gauge, Framebuffer memory reserved (in MiB).\n"

RETIRED = """\
DCGM_FI_DEV_RETIRED_SBE,     counter, Total number of retired pages due to single-bit errors.
DCGM_FI_DEV_RETIRED_DBE,     counter, Total number of retired pages due to double-bit errors.
"""

LICENSE_AND_ROWS = """\
DCGM_FI_DEV_VGPU_LICENSE_STATUS, gauge, vGPU License status
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS, counter, Number of remapped rows for uncorrectable errors
DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS,   counter, Number of remapped rows for correctable errors
DCGM_FI_DEV_ROW_REMAP_FAILURE,           gauge,   Whether remapping of rows has failed
"""

LABEL_AND_PROFILING = """\
DCGM_FI_DRIVER_VERSION,        label, Driver Version
DCGM_FI_PROF_GR_ENGINE_ACTIVE,   gauge, Ratio of time the graphics engine is active.
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, gauge, Ratio of cycles the tensor (HMMA) pipe is active.
DCGM_FI_PROF_DRAM_ACTIVE,        gauge, Ratio of cycles the device memory interface is active sending or receiving data.
DCGM_FI_PROF_PCIE_TX_BYTES,      gauge, The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - in bytes per second.
DCGM_FI_PROF_PCIE_RX_BYTES,      gauge, The rate of data received over the PCIe bus - including both protocol headers and data payloads - in bytes per second.
"""  # noqa: E501

NVLINK = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, {}, Total number of NVLink bandwidth counters for all lanes.\n"

DEFAULT = CLOCKS_TO_MEMORY + RESERVED + NVLINK.format("gauge") + LICENSE_AND_ROWS + LABEL_AND_PROFILING
"""default-counters.csv and dcp-metrics-included.csv at 7ad5832: both have the same rows."""

DCP_BEFORE = CLOCKS_TO_MEMORY + RESERVED + RETIRED + NVLINK.format("counter") + LICENSE_AND_ROWS + LABEL_AND_PROFILING
"""dcp-metrics-included.csv at 084a245."""

DEFAULT_BEFORE = f"""\
DCGM_FI_DEV_PCIE_TX_THROUGHPUT,  counter, Total number of bytes transmitted through PCIe TX (in KB) via NVML.
DCGM_FI_DEV_PCIE_RX_THROUGHPUT,  counter, Total number of bytes received through PCIe RX (in KB) via NVML.
{CLOCKS_TO_MEMORY}{NVLINK.format("counter")}{LICENSE_AND_ROWS}"""
"""default-counters.csv at 00d6d34."""

OF_1_X = """\
dcgm_sm_clock,     gauge, SM clock frequency (in MHz).
dcgm_memory_clock, gauge, Memory clock frequency (in MHz).
dcgm_memory_temp, gauge, Memory temperature (in C).
dcgm_gpu_temp,    gauge, GPU temperature (in C).
dcgm_power_usage,              gauge, Power draw (in W).
dcgm_total_energy_consumption, counter, Total energy consumption since boot (in mJ).
dcgm_pcie_tx_throughput,  counter, Total number of bytes transmitted through PCIe TX (in KB) via NVML.
dcgm_pcie_rx_throughput,  counter, Total number of bytes received through PCIe RX (in KB) via NVML.
dcgm_pcie_replay_counter, counter, Total number of PCIe retries.
dcgm_gpu_utilization,      gauge, GPU utilization (in %).
dcgm_mem_copy_utilization, gauge, Memory utilization (in %).
dcgm_enc_utilization,      gauge, Encoder utilization (in %).
dcgm_dec_utilization,      gauge, Decoder utilization (in %).
dcgm_xid_errors,            gauge, Value of the last XID error encountered.
dcgm_fb_free, gauge, Framebuffer memory free (in MiB).
dcgm_fb_used, gauge, Framebuffer memory used (in MiB).
dcgm_nvlink_bandwidth_total,            counter, Total number of NVLink bandwidth counters for all lanes
dcgm_fi_prof_gr_engine_active,   gauge, Ratio of time the graphics engine is active (in %).
dcgm_fi_prof_pipe_tensor_active, gauge, Ratio of cycles the tensor (HMMA) pipe is active (in %).
dcgm_fi_prof_dram_active,        gauge, Ratio of cycles the device memory interface is active sending or receiving data (in %).
dcgm_fi_prof_pcie_tx_bytes,      counter, The number of bytes of active pcie tx data including both header and payload.
dcgm_fi_prof_pcie_rx_bytes,      counter, The number of bytes of active pcie rx data including both header and payload.
"""  # noqa: E501
"""1.x-compatibility-metrics.csv at 0869a2a."""

OF_1_X_LATER = OF_1_X.replace("dcgm_pcie_tx_throughput", "dcgm_fi_prof_pcie_tx_bytes").replace(
    "dcgm_pcie_rx_throughput", "dcgm_fi_prof_pcie_rx_bytes"
)
"""1.x-compatibility-metrics.csv at 99a774b, which lists these two fields twice."""

OPTIONAL = """\
DCGM_FI_DEV_POWER_VIOLATION,       counter, Throttling duration due to power constraints (in ns).
DCGM_FI_DEV_THERMAL_VIOLATION,     counter, Throttling duration due to thermal constraints (in ns).
DCGM_FI_DEV_SYNC_BOOST_VIOLATION,  counter, Throttling duration due to sync-boost constraints (in ns).
DCGM_FI_DEV_BOARD_LIMIT_VIOLATION, counter, Throttling duration due to board limit constraints (in ns).
DCGM_FI_DEV_LOW_UTIL_VIOLATION,    counter, Throttling duration due to low utilization (in ns).
DCGM_FI_DEV_RELIABILITY_VIOLATION, counter, Throttling duration due to reliability constraints (in ns).
DCGM_EXP_CLOCK_EVENTS_COUNT, gauge,   Clock events observed during the configured time window.
DCGM_EXP_CLOCK_EVENTS_TOTAL, counter, Total clock events observed since exporter start (edge-counted).
DCGM_EXP_XID_ERRORS_COUNT,   gauge,   XID errors observed during the configured time window.
DCGM_EXP_XID_ERRORS_TOTAL,   counter, Total XID errors observed since exporter start.
DCGM_EXP_GPU_HEALTH_STATUS,  gauge,   Current DCGM-reported GPU health status.
DCGM_EXP_P2P_STATUS,         gauge,   Current NVLink P2P status per peer link.
DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, counter, Total number of single-bit volatile ECC errors.
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, Total number of double-bit volatile ECC errors.
DCGM_FI_DEV_ECC_SBE_AGG_TOTAL, counter, Total number of single-bit persistent ECC errors.
DCGM_FI_DEV_ECC_DBE_AGG_TOTAL, counter, Total number of double-bit persistent ECC errors.
DCGM_FI_DEV_RETIRED_SBE,     counter, Total number of retired pages due to single-bit errors.
DCGM_FI_DEV_RETIRED_DBE,     counter, Total number of retired pages due to double-bit errors.
DCGM_FI_DEV_RETIRED_PENDING, counter, Total number of pages pending retirement.
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, counter, Total number of NVLink flow-control CRC errors.
DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, counter, Total number of NVLink data CRC errors.
DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,   counter, Total number of NVLink retries.
DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, counter, Total number of NVLink recovery errors.
DCGM_FI_DEV_NVLINK_BANDWIDTH_L0,               counter, The number of bytes of active NVLink rx or tx data including both header and payload.
DCGM_FI_NVML_VERSION,          label, NVML Version
DCGM_FI_DEV_BRAND,             label, Device Brand
DCGM_FI_DEV_SERIAL,            label, Device Serial Number
DCGM_FI_DEV_OEM_INFOROM_VER,   label, OEM inforom version
DCGM_FI_DEV_ECC_INFOROM_VER,   label, ECC inforom version
DCGM_FI_DEV_POWER_INFOROM_VER, label, Power management object inforom version
DCGM_FI_DEV_INFOROM_IMAGE_VER, label, Inforom image version
DCGM_FI_DEV_VBIOS_VERSION,     label, VBIOS version of the device
DCGM_FI_PROF_SM_ACTIVE,          gauge, The ratio of cycles an SM has at least 1 warp assigned.
DCGM_FI_PROF_SM_OCCUPANCY,       gauge, The ratio of number of warps resident on an SM.
DCGM_FI_PROF_PIPE_FP64_ACTIVE,   gauge, Ratio of cycles the fp64 pipes are active.
DCGM_FI_PROF_PIPE_FP32_ACTIVE,   gauge, Ratio of cycles the fp32 pipes are active.
DCGM_FI_PROF_PIPE_FP16_ACTIVE,   gauge, Ratio of cycles the fp16 pipes are active.
DCGM_FI_PROF_SM_CYCLES_ELAPSED_TOTAL, counter, Total elapsed SM cycles.
DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL,     counter, Total PCIe transmitted bytes.
"""  # noqa: E501
"""Rows that default-counters.csv has as comments at 7ad5832; of the counters of cycles and bytes, two."""
