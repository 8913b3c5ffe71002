//! Explains in plain words why a knob cannot be read or written.

use std::fmt;
use std::io;

use netsilo_model::change::Target;
use rustix::io::Errno;

use crate::read::netns::NotEntered;
use crate::transaction::bounded::NoAnswer;
use crate::transaction::kernel::{EthtoolSetting, Kernel, KnobAddress};
use crate::transaction::knob::napis::NapisDisabled;
use crate::transaction::knob::refusal::{Doing, hint};

/// Why a knob cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KnobError {
    /// Now there is another interrupt, device or thread.
    #[error("{target}: {why}")]
    Gone {
        /// The knob.
        target: Box<Target>,
        /// What is there instead.
        why: String,
    },
    /// The kernel refused, or the file could not be read.
    #[error("{target}: cannot {doing}: {source}{hint}")]
    Refused {
        /// The knob.
        target: Box<Target>,
        /// What was tried.
        doing: Doing,
        /// What the kernel answered.
        source: io::Error,
        /// What the answer means here and what to do next. It follows a colon and may be empty.
        hint: Hint,
    },
    /// The write might never return from the kernel now. Nothing was written.
    #[error("{target}: {source}")]
    Waiting {
        /// The knob.
        target: Box<Target>,
        /// What it waits for.
        source: NapisDisabled,
    },
    /// The text is not a valid value of this knob.
    #[error("{target}: {raw:?} is not a value that netsilo understands: {why}")]
    Unreadable {
        /// The knob.
        target: Box<Target>,
        /// The text.
        raw: String,
        /// What is wrong with it.
        why: String,
    },
}

impl KnobError {
    /// The knob.
    pub fn target(&self) -> &Target {
        match self {
            Self::Gone { target, .. }
            | Self::Refused { target, .. }
            | Self::Waiting { target, .. }
            | Self::Unreadable { target, .. } => target,
        }
    }

    /// Whether this process is not permitted to write.
    pub fn is_permission(&self) -> bool {
        let Self::Refused { source, .. } = self else { return false };
        matches!(Errno::from_io_error(source), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
    }

    /// Whether the knob or its owner does not exist any more.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Gone { .. } => true,
            Self::Refused { source, .. } => {
                matches!(
                    Errno::from_io_error(source),
                    Some(Errno::NOENT | Errno::NODEV | Errno::SRCH)
                )
            }
            Self::Waiting { .. } | Self::Unreadable { .. } => false,
        }
    }

    /// Whether the kernel accepted the value but the setting did not change, because another
    /// setting that it depends on prevents it. There is no errno then.
    pub fn is_not_followed(&self) -> bool {
        matches!(self, Self::Refused { source, .. }
            if source.raw_os_error().is_none() && !NoAnswer::is(source))
    }

    /// Whether the kernel did not answer in time. It may still carry out the request.
    pub fn is_no_answer(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if NoAnswer::is(source))
    }

    pub(super) fn refused(target: &Target, doing: Doing, source: io::Error) -> Self {
        let hint = Hint(hint(target, &doing, &source).map(str::to_owned));
        Self::Refused { target: Box::new(target.clone()), doing, source, hint }
    }

    /// The same, with the limits that the driver reports.
    pub(super) fn refused_at(
        kernel: &dyn Kernel,
        place: &KnobAddress,
        target: &Target,
        doing: Doing,
        source: io::Error,
    ) -> Self {
        let invalid = Errno::from_io_error(&source) == Some(Errno::INVAL);
        let mut refused = Self::refused(target, doing, source);
        if let (Some(most), true, Self::Refused { hint: Hint(hint), .. }) =
            (most(kernel, place), invalid, &mut refused)
        {
            let known = hint.take().map(|hint| format!("; {hint}")).unwrap_or_default();
            *hint = Some(format!("its driver accepts at most {}{known}", most.trim()));
        }
        refused
    }

    /// The knob's network namespace was not entered.
    pub(crate) fn not_entered(target: &Target, why: &NotEntered) -> Self {
        match why {
            NotEntered::Gone => Self::gone(target, why.to_string()),
            NotEntered::Why(why) => {
                Self::refused(target, Doing::Enter, io::Error::other(why.clone()))
            }
        }
    }

    pub(super) fn gone(target: &Target, why: impl Into<String>) -> Self {
        Self::Gone { target: Box::new(target.clone()), why: why.into() }
    }
}

/// What a refusal means and what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint(Option<String>);

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |hint| write!(f, ": {hint}"))
    }
}

/// The maximum that the driver accepts, if it reports limits.
fn most(kernel: &dyn Kernel, place: &KnobAddress) -> Option<String> {
    let KnobAddress::Ethtool(netdev, setting) = place else { return None };
    let most = match setting {
        EthtoolSetting::Channels => EthtoolSetting::MostChannels,
        EthtoolSetting::Rings => EthtoolSetting::MostRings,
        _ => return None,
    };
    kernel.get(&KnobAddress::Ethtool(netdev.clone(), most)).ok()
}
