//! Crash and fault loops over every operation of the disk, through the commands themselves.
//!
//! A workload runs on a disk in memory. At every operation it is stopped, or the operation fails, once or for ever,
//! or writes too little; then everything that a power cut may leave is recovered and compared with a model that
//! knows what was acknowledged. Disks that lie show that the loops can find something.

mod lies;
mod loops;
mod model;
mod script;
mod tree;
mod turn;
mod world;
