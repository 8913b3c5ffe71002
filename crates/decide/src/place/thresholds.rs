//! Thresholds that several algorithms share: when a core is idle, and when a move is worth it.

/// A core is idle if each of its CPUs is busy for less than this share of the time.
///
/// A poll then finds the CPU free four times in five, and clock ticks (1% in a second) resolve this
/// share.
pub const IDLE_BELOW: f64 = 0.20;

/// The present core of a vector counts as idle up to this share, so that noise does not move the
/// vector.
pub const IDLE_STAYS: f64 = 0.30;

/// A core must be idler than this for a vector to leave its present place for it.
pub const IDLE_LEAVES: f64 = 0.15;

/// A place is kept unless another one is better by more than this share: measurements vary that
/// much.
pub const WORTH_MOVING: f64 = 0.20;

/// Share of the fixed part of what a move must gain that suffices in a plan that moves something
/// anyway: one more write costs nothing there, and a queue that has little to gain now may have
/// more under a heavier load.
pub const SUFFICES_FIXED: f64 = 0.1;

/// A CPU is full if it is idle for at most this share of the time.
pub const FULL: f64 = 0.05;

/// A CPU can take more work if it is idle for at least this share of the time.
pub const IDLE: f64 = 0.5;

/// A queue with at least this share of a CPU's time fills any CPU, wherever it is.
pub const FILLS_A_CPU: f64 = 0.8;
