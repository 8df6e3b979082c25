// Ctrl-C: what a verb says that is interrupted before its answer.
#pragma once

namespace xstage::cli {

/// From here on SIGINT and SIGTERM end the process with 130, a complete document (with `json`) and
/// a last line on stderr. For verbs whose partial work is worth nothing; a verb that keeps what it
/// has sets a handler of its own and gives this one back at its end. A signal that the parent
/// ignores (nohup) stays ignored.
void answer_interrupts(bool json);

/// The work is done and its files and document are being written: the first signal no longer ends
/// the process, so that nothing is cut off or said twice; a second one ends it at once.
void begin_answer();

}  // namespace xstage::cli
