//! The v1 control files of memory, pids and cpu.

use super::dir::{Dir, if_present};
use super::{CPU_PERIOD_US, CgroupError, Controller, Limits};

const LIMIT: &str = "memory.limit_in_bytes";
/// Memory plus swap; absent when the kernel does not account swap.
const LIMIT_WITH_SWAP: &str = "memory.memsw.limit_in_bytes";

pub(super) fn set_limit(dir: &Dir, controller: Controller, limits: &Limits) -> Result<(), CgroupError> {
    match controller {
        Controller::Memory => set_memory(dir, limits.memory_bytes),
        Controller::Pids => dir.write("pids.max", &limits.pids_max()),
        Controller::Cpu => {
            dir.write("cpu.cfs_period_us", &CPU_PERIOD_US.to_string())?;
            dir.write("cpu.cfs_quota_us", &or_unlimited(limits.cpu_quota_us()))
        }
    }
}

fn set_memory(dir: &Dir, bytes: Option<u64>) -> Result<(), CgroupError> {
    let value = or_unlimited(bytes);
    if_present(dir.write("memory.swappiness", "0"))?;
    if !dir.has(LIMIT_WITH_SWAP) {
        return dir.write(LIMIT, &value);
    }
    // The kernel keeps LIMIT <= LIMIT_WITH_SWAP at every step and answers EINVAL otherwise.
    let with_swap = dir.read(LIMIT_WITH_SWAP)?.trim().parse().unwrap_or(u64::MAX);
    let raising = bytes.is_none_or(|bytes| bytes >= with_swap);
    let order = if raising { [LIMIT_WITH_SWAP, LIMIT] } else { [LIMIT, LIMIT_WITH_SWAP] };
    order.iter().try_for_each(|file| dir.write(file, &value))
}

fn or_unlimited(limit: Option<u64>) -> String {
    limit.map_or_else(|| "-1".to_owned(), |limit| limit.to_string())
}
