//! The screen of `top`: its state, its keys, and how it is drawn.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line as Styled;
use ratatui::widgets::Paragraph;

use super::tables::{self, Line, LineKind, Sort};
use crate::snapshot::Snapshot;

/// State of the screen.
#[derive(Debug)]
pub(crate) struct Screen {
    before: Snapshot,
    now: Snapshot,
    sort: Sort,
    /// Updates are paused.
    paused: bool,
    /// Lines above the window.
    skipped: usize,
    /// Lines that fit into the window at the last draw.
    window: usize,
}

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyAction {
    Continue,
    Quit,
}

impl Screen {
    /// Shows a first snapshot, without rates.
    pub(crate) fn new(first: Snapshot) -> Self {
        Self {
            before: first.clone(),
            now: first,
            sort: Sort::default(),
            paused: false,
            skipped: 0,
            window: 1,
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Shows the next snapshot.
    pub(crate) fn show(&mut self, next: Snapshot) {
        self.before = core::mem::replace(&mut self.now, next);
    }

    /// Handles a key.
    pub(crate) fn press(&mut self, key: KeyEvent) -> KeyAction {
        if key.kind == KeyEventKind::Release {
            return KeyAction::Continue;
        }
        let page = self.window.saturating_sub(1).max(1);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return KeyAction::Quit;
            }
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Up => self.skipped = self.skipped.saturating_sub(1),
            KeyCode::Down => self.skipped = self.skipped.saturating_add(1),
            KeyCode::PageUp => self.skipped = self.skipped.saturating_sub(page),
            KeyCode::PageDown => self.skipped = self.skipped.saturating_add(page),
            KeyCode::Home => self.skipped = 0,
            KeyCode::End => self.skipped = usize::MAX,
            _ => {}
        }
        KeyAction::Continue
    }

    /// Draws the screen into the available space.
    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [body, foot] =
            Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
        let lines = tables::lines(&self.before, &self.now, self.sort);
        self.window = usize::from(body.height);
        // The last line is never above the window.
        self.skipped = self.skipped.min(lines.len().saturating_sub(self.window));
        let shown = lines
            .iter()
            .skip(self.skipped)
            .take(self.window)
            .map(styled);
        frame.render_widget(Paragraph::new(shown.collect::<Vec<_>>()), body);
        let hidden = lines
            .len()
            .saturating_sub(self.skipped.saturating_add(self.window));
        let foot_text = format!(
            "q quit  s sort: {}  p {}  arrows scroll{}",
            self.sort.name(),
            if self.paused {
                "resume (paused)"
            } else {
                "pause"
            },
            if hidden > 0 {
                format!(" ({hidden} lines below)")
            } else {
                String::new()
            },
        );
        let style = Style::new().add_modifier(Modifier::REVERSED);
        frame.render_widget(Paragraph::new(foot_text).style(style), foot);
    }
}

fn styled(line: &Line) -> Styled<'_> {
    let style = match line.kind {
        LineKind::Head => Style::new().add_modifier(Modifier::BOLD),
        LineKind::Titles => Style::new().add_modifier(Modifier::REVERSED),
        LineKind::Gap | LineKind::Row => Style::new(),
    };
    Styled::styled(line.text.as_str(), style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::sample::snapshot;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn rows(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..height).map(|y| row(y).trim_end().to_owned()).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> KeyAction {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn screen() -> Screen {
        let mut screen = Screen::new(snapshot(0));
        screen.show(snapshot(2));
        screen
    }

    #[test]
    fn large_terminal_shows_all_lines() {
        let rows = rows(&mut screen(), 100, 30);
        let expected = tables::lines(&snapshot(0), &snapshot(2), Sort::Rate);
        for (row, line) in rows.iter().zip(&expected) {
            assert_eq!(*row, line.text);
        }
        assert_eq!(rows[29], "q quit  s sort: rate  p pause  arrows scroll");
    }

    #[test]
    fn small_terminal_shows_a_window_that_scrolls() {
        let mut screen = screen();
        let all = tables::lines(&snapshot(0), &snapshot(2), Sort::Rate);
        let first = rows(&mut screen, 100, 6);
        assert_eq!(first[0], all[0].text);
        assert!(
            first[5].ends_with(&format!("({} lines below)", all.len() - 5)),
            "{first:?}"
        );
        press(&mut screen, KeyCode::Down);
        assert_eq!(rows(&mut screen, 100, 6)[0], all[1].text);
        press(&mut screen, KeyCode::PageDown);
        assert_eq!(rows(&mut screen, 100, 6)[0], all[5].text);
        press(&mut screen, KeyCode::PageUp);
        press(&mut screen, KeyCode::Up);
        assert_eq!(rows(&mut screen, 100, 6)[0], all[0].text);
        press(&mut screen, KeyCode::End);
        assert_eq!(rows(&mut screen, 100, 6)[4], all[all.len() - 1].text);
        // After the terminal has grown, no line is hidden above the window.
        assert_eq!(rows(&mut screen, 100, 40)[0], all[0].text);
        press(&mut screen, KeyCode::Down);
        press(&mut screen, KeyCode::Home);
        assert_eq!(rows(&mut screen, 100, 6)[0], all[0].text);
    }

    #[test]
    fn tiny_terminals_are_drawn() {
        for (width, height) in [(1, 1), (3, 1), (1, 3), (20, 2)] {
            let mut screen = screen();
            assert_eq!(rows(&mut screen, width, height).len(), usize::from(height));
            press(&mut screen, KeyCode::PageDown);
            rows(&mut screen, width, height);
        }
    }

    #[test]
    fn keys_quit_sort_and_pause() {
        let mut screen = screen();
        for quit in [KeyCode::Char('q'), KeyCode::Esc] {
            assert_eq!(press(&mut screen, quit), KeyAction::Quit);
        }
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.press(interrupt), KeyAction::Quit);
        for other in [KeyCode::Char('c'), KeyCode::Char('x'), KeyCode::Tab] {
            assert_eq!(press(&mut screen, other), KeyAction::Continue);
        }
        press(&mut screen, KeyCode::Char('s'));
        press(&mut screen, KeyCode::Char('p'));
        assert!(screen.is_paused());
        let rows = rows(&mut screen, 100, 30);
        assert_eq!(
            rows[29],
            "q quit  s sort: bytes  p resume (paused)  arrows scroll"
        );
        press(&mut screen, KeyCode::Char('p'));
        assert!(!screen.is_paused());
    }
}
