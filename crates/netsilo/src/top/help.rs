//! The keys, for the help page.

use crate::top::state::Text;

const HELP: &str = "\
pages
  1 to 7, Tab        map, queues, cpus, consumers, findings, decisions, drops
  up down j k        select a row; PgUp, PgDn, Home, End: further
  Enter              explain it, as netsilo explain does; all its columns
  /                  show only rows that contain a text; Esc: all rows
  s, r               sort by the next column; reverse
  z, left, right     the map's columns: cpus, cores, caches, nodes; scroll
  w                  save the page, or the text over it, to a new file here
  Ctrl-Z             back to the shell; fg continues

time
  space              freeze the screen, go on
  + -                longer, shorter interval
  [ ]                a window back, on: of a bundle with several

changes
  p                  the plan; on page 5, of what fixes the selected finding
  a                  apply the plan shown; restored unless you confirm in time
  c                  confirm: keep what was applied
  u                  undo the newest transaction

  q                  quit; what is not confirmed is still restored in time

the map
  A row is an rx queue, a column is a cpu (or a core, a cache, a node).
  A filled circle polls the queue; RPS moves the work to a filled diamond.
  Its data is read at the other marks; the bar next to a mark is the share
  of the queue's bytes. The marks stand in the order of their distance.
  A double line leads to another node: these bytes cross between sockets.
";

/// The help page.
pub(crate) fn text() -> Text {
    Text::new("keys", HELP)
}
