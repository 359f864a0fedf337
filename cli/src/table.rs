//! Tables with aligned columns, in the format of kubectl.

/// Rows of cells under a header. Columns are three spaces apart.
pub(crate) struct TextTable {
    rows: Vec<Vec<String>>,
}

const GAP: usize = 3;

impl TextTable {
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(ToString::to_string).collect()] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Renders the table without trailing spaces. If the terminal is too narrow, cuts the longest cells.
    pub(crate) fn render(&self, terminal: Option<usize>) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        };
        let mut widths: Vec<usize> = (0..columns).map(width).collect();
        if let Some(terminal) = terminal {
            fit(&mut widths, terminal);
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let length = cell.chars().count();
                if length > *width {
                    line.extend(cell.chars().take(width - 1).chain(['…']));
                } else {
                    line.push_str(cell);
                }
                line.extend(std::iter::repeat_n(' ', width.saturating_sub(length) + GAP));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Shrinks the widest column until all columns fit, or until none is wider than a word.
fn fit(widths: &mut [usize], terminal: usize) {
    const WORD: usize = 8;
    let gaps = GAP * widths.len().saturating_sub(1);
    let mut over = (widths.iter().sum::<usize>() + gaps).saturating_sub(terminal);
    while over > 0 {
        let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > WORD) else { return };
        *widest -= 1;
        over -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = TextTable::new(&["NAME", "READY"]);
        table.row(vec!["etcd-0".into(), "True".into()]);
        table.row(vec!["kube-apiserver-0".into(), "False".into()]);
        assert_eq!(table.render(None), "NAME               READY\netcd-0             True\nkube-apiserver-0   False\n");
        assert_eq!(table.render(Some(20)), "NAME           READY\netcd-0         True\nkube-apiser…   False\n");
        assert_eq!(table.render(Some(1)).lines().next(), Some("NAME       READY"));
    }
}
