//! The pages of `netsilo help TOPIC`, which the manual page contains too.

/// A page about something that several verbs share.
#[derive(Debug)]
pub struct Topic {
    /// The word after `netsilo help`.
    pub name: &'static str,
    /// The page in Markdown, beginning with its title.
    pub page: &'static str,
}

macro_rules! topics {
    ($($name:literal: $path:literal,)*) => {
        &[$(Topic {
            name: $name,
            page: include_str!(concat!("../../../../docs/", $path)),
        },)*]
    };
}

/// All pages.
pub const TOPICS: &[Topic] = topics! {
    "cpus": "topics/cpus.md",
    "subjects": "topics/subjects.md",
    "units": "topics/units.md",
    "drops": "topics/drops.md",
    "safety": "topics/safety.md",
    "privileges": "topics/privileges.md",
    "files": "topics/files.md",
    "exit-codes": "topics/exit-codes.md",
};

impl Topic {
    /// The page's title.
    pub fn title(&self) -> &'static str {
        self.page.lines().next().unwrap_or_default().trim_start_matches("# ")
    }

    /// The page without its title.
    pub fn body(&self) -> &'static str {
        self.page.split_once('\n').map_or("", |(_, body)| body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    #[test]
    fn each_topic_has_a_title_and_a_name_that_no_verb_has() {
        for topic in TOPICS {
            assert!(topic.page.starts_with("# ") && topic.body().len() > 100, "{}", topic.name);
            assert!(command().find_subcommand(topic.name).is_none(), "{}", topic.name);
        }
    }
}
