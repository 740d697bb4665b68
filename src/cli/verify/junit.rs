//! `--report junit=FILE`: the verdicts for a CI server, one test case for each file.

use super::told;
use crate::verify::{Report, Severity};
use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};

/// The name of all of it.
const NAME: &str = "turnkeep verify";

/// The document. Characters that XML cannot hold are left out; nothing in it tells the time.
pub(super) fn document(reports: &[Report]) -> Result<String, quick_junit::SerializeError> {
    let mut suite = TestSuite::new(NAME);
    suite.add_test_cases(reports.iter().map(case));
    let mut document = quick_junit::Report::new(NAME);
    document.add_test_suite(suite);
    document.to_string()
}

fn case(report: &Report) -> TestCase {
    let findings: Vec<String> = report.findings.iter().map(|finding| told(finding) + "\n").collect();
    let findings = findings.concat();
    let mut status = match report.worst() {
        Severity::Note | Severity::Warning => TestCaseStatus::success(),
        // Nobody knows whether it is sound.
        Severity::Unreadable | Severity::OtherFormat => TestCaseStatus::non_success(NonSuccessKind::Error),
        Severity::NeedsRecovery | Severity::Conflict | Severity::Damage => {
            TestCaseStatus::non_success(NonSuccessKind::Failure)
        }
    };
    let passes = matches!(status, TestCaseStatus::Success { .. });
    if !passes {
        status.set_type(report.verdict()).set_message(super::verdict_line(report));
        status.set_description(findings.clone());
    }
    let mut case = TestCase::new(report.path.display().to_string(), status);
    case.set_classname(report.what.word());
    if passes && !findings.is_empty() {
        case.set_system_out(findings);
    }
    case
}
