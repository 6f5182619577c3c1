declare module '*.css'
declare module 'react-dom/client' {
  export const createRoot: (element: HTMLElement | null) => { render(node: unknown): void }
}
