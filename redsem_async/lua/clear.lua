-- clear: delete the semaphore. Holders lose their permits, and waiters start again.
--
-- KEYS     as in the head
-- ARGV     none of its own
-- RETURNS  {tag}

for _, owner in ipairs(call('ZRANGE', hubs, 0, -1)) do
  if owner ~= hub then tell(owner, 'cleared', '-') end
end
-- The marker stays: that the holders are gone is no loss of state.
call('UNLINK', unpack(KEYS, 1, 7))
if last >= wall_us then
  -- Tokens have run ahead of the server's clock: none of them may be drawn again.
  call('HSET', meta, 'counter', last)
  call('PEXPIRE', meta, math.ceil(lead() + SLACK))
end
return { tag }
