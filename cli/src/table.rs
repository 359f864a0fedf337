//! Tables that line up, as kubectl writes them.

/// Rows of cells under a header, three spaces apart.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

const GAP: usize = 3;

impl Table {
    /// A table with these columns.
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(ToString::to_string).collect()] }
    }

    /// One more row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The text, with nothing behind the last column.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width + GAP - cell.chars().count()));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", "READY"]);
        table.row(vec!["etcd-0".into(), "True".into()]);
        table.row(vec!["kube-apiserver-0".into(), "False".into()]);
        assert_eq!(table.render(), "NAME               READY\netcd-0             True\nkube-apiserver-0   False\n");
    }
}
