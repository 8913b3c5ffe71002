//! Snapshots of this machine and of captured trees.

use netsilo_sys::root::Root;
use netsilo_sys::snapshot;

#[test]
fn a_saved_tree_gives_the_same_snapshot_again() {
    let dir = tempfile::tempdir().unwrap();
    let (root, recorder) = Root::live().recording(dir.path()).unwrap();
    let live = snapshot(&root).unwrap();
    recorder.finish().unwrap();
    let again = snapshot(&Root::at(dir.path()).unwrap()).unwrap();
    assert_eq!(serde_json::to_value(&again).unwrap(), serde_json::to_value(&live).unwrap());
    assert!(!live.topology.online.is_empty() && !live.irqs.is_empty());
    let again_saved = tempfile::tempdir().unwrap();
    let (root, recorder) = Root::at(dir.path()).unwrap().recording(again_saved.path()).unwrap();
    snapshot(&root).unwrap();
    recorder.finish().unwrap();
}
